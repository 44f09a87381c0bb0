"""What a job is: its options, their checks, its policy, and the registry of all of them."""
