"""The report of a chaos run: numbers, page, timeline."""
