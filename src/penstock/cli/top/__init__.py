"""`penstock top`: a live view of a store in the terminal, with the acts of an operator. Needs `textual`."""
