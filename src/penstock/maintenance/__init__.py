"""Maintenance of a store, run by workers: promote, reclaim, prune, enqueue periodic jobs."""
