"""The workload of a run: its tasks, its producers, and its kinds of workers."""
