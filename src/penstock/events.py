"""All events that an app emits. They are defined in `penstock.core.events`; this is their public path."""

from penstock.core.events import *  # noqa: F403
from penstock.core.events import Listener as Listener
from penstock.core.events import __all__ as __all__
