"""The duties that keep the tables in order while workers run: one module per duty.

Imports ``models``, ``definition`` and ``store``, never ``worker``: a slow duty must not delay a renewal, so only
``running`` connects the two. Each duty has a ``tick`` that does a bounded amount of work and decides when to run again.
"""
