"""The ledger: a record of what happened, kept outside the store, and the checker that compares both.

Producers, workers and fault injectors write into a `Ledger`. `check` decides whether the store kept its
guarantees.
"""

from penstock.verify.ledger.check import acheck, check, summary
from penstock.verify.ledger.ledger import Ledger
from penstock.verify.ledger.verdict import Duplicate, LedgerBroken, Verdict, Violation

__all__ = ["Duplicate", "Ledger", "LedgerBroken", "Verdict", "Violation", "acheck", "check", "summary"]
