"""Programs of other languages and libraries, measured beside Penstock: `python -m benchmarks.foreign`."""
