"""The report of a chaos run: numbers, HTML page and timeline."""
