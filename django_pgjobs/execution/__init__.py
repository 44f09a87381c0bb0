"""One attempt of one job, from its start to the statement that writes its end."""
