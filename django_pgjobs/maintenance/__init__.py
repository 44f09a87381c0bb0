"""What keeps the tables right while workers work: one module per duty.

Imports ``models``, ``definition`` and ``store``. A stranger to ``worker``: a slow duty must not delay a renewal, so
``running`` alone brings the two together. Each duty has a ``tick`` that does a bounded amount and says when to return.
"""
