"""The demo of `penstock demo`: jobs on real files, and a worker that is killed midway."""
