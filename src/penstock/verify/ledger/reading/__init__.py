"""Reads facts and sorts them into one story per job."""
