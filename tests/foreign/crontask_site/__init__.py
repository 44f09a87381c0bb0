"""A site whose clock is django-crontask: it enqueues, and our workers run."""
