"""The worker process, and the coordinator's end of the link to it."""
