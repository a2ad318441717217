"""The verbs of the seam as plain functions of a `Shelf`; whoever calls one holds its lock (`Shelf.step`)."""
