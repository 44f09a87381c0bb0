"""The values in settings and job definitions: schedules, limits, backoff, retention, keys, tags.

Imports ``states`` only. No clock, no database, no settings, no registry: every rule here is a pure
function or a frozen dataclass, and its tests need nothing but Python.
"""
