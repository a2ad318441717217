"""All settings (`knobs.py`), and how they are read from code, environment and file (`sources.py`)."""

from penstock.config.kinds import mask_url
from penstock.config.knobs import KNOBS, Config, Knob
from penstock.config.sources import FILE, Loaded, Setting, load

__all__ = ["FILE", "KNOBS", "Config", "Knob", "Loaded", "Setting", "load", "mask_url"]
