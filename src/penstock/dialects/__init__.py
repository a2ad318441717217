"""Layouts and protocols that other job systems chose, over the stores of Penstock. One package per system."""
