"""``manage.py runjobs`` and ``manage.py pgjobs …``: one module per group of subcommands.

Stands above every room and may import any. No rule about jobs belongs here: a subcommand parses words, calls a room
below and prints. Nothing imports it.
"""
