"""The faults of a run: their types, their plan, and their injection."""
