"""Real work on real files, with a worker killed midway: what `penstock demo` runs."""
