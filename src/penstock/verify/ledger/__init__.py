"""An account of what really happened, kept outside the store, and the checker that compares the two.

Producers, workers and whoever does harm write into a `Ledger`; `check` decides whether the store kept
its promises.
"""

from penstock.verify.ledger.check import acheck, check
from penstock.verify.ledger.recording.ledger import Ledger
from penstock.verify.ledger.summary import summary
from penstock.verify.ledger.verdict import Duplicate, LedgerBroken, Verdict, Violation

__all__ = ["Duplicate", "Ledger", "LedgerBroken", "Verdict", "Violation", "acheck", "check", "summary"]
