"""Other queues on PostgreSQL, measured on the same server in the same run.

``known`` says what each is and how it is tuned, ``environments`` installs it, ``racing`` measures it. What runs
within a peer's own virtual environment is its ``…_side`` module and ``side``: they know the peer and nothing of Django
or of us.
"""
