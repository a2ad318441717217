"""The verbs of the seam as plain functions of a Step; none begins or commits a transaction.

A `peek_…` answers from a read alone if nothing is to be written, and else returns `ACT`: then the verb
itself has to run, inside a write transaction.
"""
