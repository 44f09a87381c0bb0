"""Problems that keep jobs from running, and the latest figures of the fleet: for the leader, the admin and the shell.

This room imports ``models`` and the rooms below it. It only reads.
"""
