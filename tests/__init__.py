"""The tests of django-pgjobs."""
