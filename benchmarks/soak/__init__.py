"""Soak test: does a worker or its store grow? `python -m benchmarks.soak`."""
