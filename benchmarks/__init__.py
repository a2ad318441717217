"""The benchmarks of Penstock: `python -m benchmarks`; docs/benchmarks.md explains them."""
