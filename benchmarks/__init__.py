"""How fast Penstock is, measured: `python -m benchmarks`; docs/benchmarks.md says how."""
