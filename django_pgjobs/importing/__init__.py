"""Take over what waits in another queue: its jobs, each once, and its schedules.

No module here imports the other queue: its tables are read by SQL, its messages as data. A *source* yields rows; they
are judged by the rules that a registration here follows, and written by one writer, which a run and its undo share.
"""
