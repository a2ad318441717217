"""Keeps worker processes alive, and their leases while they cannot speak for themselves."""
