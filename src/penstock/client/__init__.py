"""Producing: writes calls down as jobs, enqueues them, and waits for their results."""
