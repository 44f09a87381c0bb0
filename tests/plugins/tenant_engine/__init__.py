"""A database engine for tenants, as that of django-tenants: the path is set at each cursor."""
