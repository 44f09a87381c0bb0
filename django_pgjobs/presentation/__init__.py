"""Jobs in words and in lists, for the admin and the shell.

Imports ``models`` and what is below. No HTML and no terminal: ``admin`` and ``management`` add those.
"""
