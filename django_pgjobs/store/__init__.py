"""The only caller of ``sql/``: one typed function per statement, rows in, plain values out.

Imports ``sql``, ``states``, ``clock`` and ``decisions``; knows no model and no policy. Every function takes the
``Database`` it runs on: a worker's own connection (``worker.shared.connection``) or, for registering, steering and
tests, Django's (``on(alias)``). It never commits and never retries; the owner of the connection does.

Workers, operators and tests import everything from ``store.statements``. Code that web processes load to register a job
imports only the modules that it needs, so import nothing here.
"""
