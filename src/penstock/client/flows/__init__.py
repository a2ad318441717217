"""Flows, for producers: chains, groups, chords and graphs of jobs, and the handles of flows."""
