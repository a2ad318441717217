"""Imports modules of the application, or raises an error of one clear line."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from penstock.core.errors import ConfigError, PenstockError, did_you_mean


class AppBroken(PenstockError):
    """A module of the app exists but fails while it is imported; `__cause__` is its error."""


def check_include(include: object) -> tuple[str, ...]:
    """The names of modules in `App(include=[...])`. Raises ConfigError; imports nothing."""
    if isinstance(include, str) or not isinstance(include, Sequence):
        raise ConfigError(f"App(): include={include!r:.100} is not a list of modules: write ['shop.tasks']")
    for name in include:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(f"App(): include={name!r:.100} is not the full name of a module{_meant(name)}")
    return tuple(dict.fromkeys(include))


def import_module(name: str) -> ModuleType:
    """Import a module of user code. Raises ConfigError if it does not exist, AppBroken if it fails."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            near = did_you_mean(missing, _modules_beside(missing))
            raise ConfigError(
                f"there is no module {missing!r}{near}: it is neither in {os.getcwd()} nor installed"
            ) from None
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:  # boundary: the module is user code
        raise _broken(name, error) from error


# ── private ──────────────────────────────────────────────────────────────────────────────────────


def _meant(name: Any) -> str:
    """`tasks.py` and `shop/tasks.py` are files; `.tasks` depends on where it is written."""
    if not isinstance(name, str):
        return ""
    written = name.removesuffix(".py").strip("./").replace("/", ".")
    return f" (did you mean {written!r}?)" if written != name and written else ""


def _modules_beside(name: str) -> list[str]:
    """The modules of the package that the module would be in, or of the working directory."""
    package, dot, _ = name.rpartition(".")
    if not dot:
        return _modules_here()
    import pkgutil  # only for this message

    paths = getattr(sys.modules.get(package), "__path__", [])
    return [f"{package}.{module.name}" for module in pkgutil.iter_modules(paths)]


def _modules_here() -> list[str]:
    try:
        entries = list(os.scandir())
    except OSError:
        return []
    files = [e.name.removesuffix(".py") for e in entries if e.name.endswith(".py")]
    return files + [e.name for e in entries if e.is_dir() and e.name.isidentifier()]


def _broken(name: str, error: BaseException) -> AppBroken:
    """AppBroken with the last line of the error and the place in user code that raised it."""
    last = traceback.format_exception_only(error)[-1].strip()
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and not frame.filename.startswith("<frozen importlib")
    ]
    frames = [f for f in frames if not f.filename.endswith("importlib/__init__.py")]
    if isinstance(error, SyntaxError):
        place = f"{error.filename}:{error.lineno}"
    elif frames:
        place = f"{frames[-1].filename}:{frames[-1].lineno}"
    else:
        place = "place unknown"
    return AppBroken(f"the module {name!r} cannot be imported: {last} ({place})")
