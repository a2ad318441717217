"""The verbs of the contract as plain functions of a TransactionContext. They never begin or commit.

A `probe_…` function answers its verb by reading alone, or returns `NEEDS_WRITE`: then the verb itself runs
inside a write transaction.
"""
