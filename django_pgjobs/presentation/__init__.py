"""Jobs in words and in lists, for the admin and the shell."""
