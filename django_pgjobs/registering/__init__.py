"""From the caller's arguments to a stored row: encode, check capacity, settle key conflicts, insert, wake workers.

Imports ``definition`` and modules of ``store``; asks Django for the model by name. Web processes load this room at each
start, so it must never import ``worker``, ``maintenance``, ``execution`` or ``store.statements``, and imports what only
keys, capacities and the bypass need where they need it.
"""
