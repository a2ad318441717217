"""Retry policies. They are defined in `penstock.core.retry`; this is their public path."""

from penstock.core.retry import *  # noqa: F403
from penstock.core.retry import __all__ as __all__
