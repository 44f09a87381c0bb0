"""The only caller of ``sql/``: one typed function a statement, rows in, plain values out.

Imports ``sql``, ``states``, ``clock`` and ``decisions``; knows no model and no policy. Every function takes the
``Database`` it runs on: a worker's own connection (``worker.connection``) or, for registering, steering and tests,
Django's (``on(alias)``). It never commits and never retries; whoever owns the connection does.

Workers, operators and tests take everything from ``store.statements``. What web processes load to register a job
imports the few modules that it needs, so nothing may be imported here.
"""
