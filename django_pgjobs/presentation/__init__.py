"""Jobs in words and in lists, for the admin and the shell.

This room imports ``models`` and the rooms below it. ``admin`` adds HTML, ``management`` adds the terminal.
"""
