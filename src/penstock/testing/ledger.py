"""The ledger of `penstock.verify.ledger`, for tests that kill workers; this is its public path."""

from penstock.verify.ledger import *  # noqa: F403
from penstock.verify.ledger import __all__ as __all__
