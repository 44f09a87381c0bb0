"""What supervisor, threads and executors have in common."""
