"""The version of Penstock; `pyproject.toml` reads it from here.

Workers announce it. Reading it from the installed metadata instead imports `email` and `csv`: 2 MB.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
