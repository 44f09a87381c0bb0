"""A small Django project that uses django-pgjobs for real work: an index of the Python standard library."""
