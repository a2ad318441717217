"""Flows that a release with older names of steps left half done, and the program that made them."""
