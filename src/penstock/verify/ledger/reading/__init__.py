"""Reads the facts of a ledger and sorts them into one story per job."""
