"""Python values as JSON and back; exceptions as rows; untrusted texts made harmless to print.

Imports ``exceptions`` and ``decisions``. Knows no job, no model and no settings: callers pass limits in. Code here
handles hostile objects, so it must not trust a ``repr``, an ``__eq__`` or a ``__class__``.
"""
