"""The only caller of ``sql/``: one typed function per statement, rows in, plain values out.

Imports ``sql``, ``states``, ``clock`` and ``decisions``; knows no model and no policy. Every function takes the
``Database`` it runs on: a worker's own connection (``worker.shared.connection``) or, for registering, steering and
tests, Django's (``on(alias)``). It never commits and never retries; the owner of the connection does.

Import the modules that you use, and call their functions through them (``claiming.claim_jobs``), so that a test can
replace one; import types, and everything in ``store.database``, by name. Web processes load what registering needs, no
more, so import nothing here.
"""
