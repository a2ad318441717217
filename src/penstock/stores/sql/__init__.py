"""The SQL engine: the verbs of a store over a transaction, for each store that keeps jobs in SQL tables."""
