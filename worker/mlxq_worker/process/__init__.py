"""The worker process: its threads, and a job's way through them."""
