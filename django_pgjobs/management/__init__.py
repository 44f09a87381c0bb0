"""``manage.py runjobs`` and ``manage.py pgjobs …``: one module per group of subcommands.

This room stands above all others and may import any; nothing imports it. Rules about jobs do not belong here: a
subcommand parses its arguments, calls a room below and prints.
"""
