"""Producing: turns calls into jobs, enqueues them, and waits for their results."""
