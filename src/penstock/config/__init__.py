"""Every knob, its default, its reason (`knobs.py`), and where each value comes from (`sources.py`)."""

from penstock.config.kinds import mask_url
from penstock.config.knobs import KNOBS, Config, Knob
from penstock.config.sources import FILE, Loaded, Setting, load

__all__ = ["FILE", "KNOBS", "Config", "Knob", "Loaded", "Setting", "load", "mask_url"]
