"""Definitions of jobs: their options, the checks of them, their policy, and the registry of all definitions.

Imports ``conf``, ``values``, ``serialization`` and types of ``store``. No model, no query and no app registry: a
project imports ``job`` before Django is ready. Registering and running stand above.
"""
