"""Whether a worker or its file grows: `python -m benchmarks.soak`."""
