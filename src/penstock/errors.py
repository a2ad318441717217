"""All errors that Penstock raises. They are defined in `penstock.core.errors`; this is their public path."""

from penstock.core.errors import *  # noqa: F403
from penstock.core.errors import __all__ as __all__
