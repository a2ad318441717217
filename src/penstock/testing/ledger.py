"""The public path of `penstock.verify.ledger`, for tests that kill workers."""

from penstock.verify.ledger import *  # noqa: F403
from penstock.verify.ledger import __all__ as __all__
