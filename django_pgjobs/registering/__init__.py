"""From the caller's arguments to a stored row: encode, check capacity, settle key conflicts, insert, wake workers.

Imports ``definition`` and modules of ``store``; asks Django for the model by name. Web processes load this room at each
start. It therefore never imports ``worker``, ``maintenance``, ``execution`` or what only they use of ``store``, and its
functions import the modules for keys, capacities and the bypass only when they need them.
"""
