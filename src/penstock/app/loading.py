"""Loads an App by `"module:attribute"`, or raises an error of one clear line."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import ModuleType
from typing import Any

from penstock.app.app import App
from penstock.core.errors import ConfigError, PenstockError, did_you_mean

__all__ = ["AppBroken", "load_app"]


class AppBroken(PenstockError):
    """The app's module exists but fails while it is imported; `__cause__` is its error."""


def load_app(spec: str) -> App:
    """Load the app and set its `spec`. Modules of the working directory are found.

    Raises ConfigError if the spec is wrong, AppBroken if user code fails.
    """
    module_name, colon, attribute = spec.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if module_name.endswith(".py") or "/" in module_name:
        written = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigError(f"{spec!r} is not an app: write the module, not its file, as in {written}:app")
    if not module_name or (colon and not attribute):
        raise ConfigError(f"{spec!r} is not an app: write module:attribute, as in tasks:app")
    module = _import(module_name)
    if not colon:
        raise ConfigError(f"{spec!r} is not an app: write module:attribute{_apps_in(module)}")
    app = _find(module, attribute)
    app.spec = spec
    return app


# ── private ──────────────────────────────────────────────────────────────────────────────────────


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            near = did_you_mean(missing, _modules_here())
            raise ConfigError(
                f"there is no module {missing!r}{near}: it is neither in {os.getcwd()} nor installed"
            ) from None
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:  # boundary: the module is user code
        raise _broken(name, error) from error


def _find(module: ModuleType, attribute: str) -> App:
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            near = did_you_mean(part, [name for name in dir(found) if not name.startswith("_")])
            raise ConfigError(
                f"the module {module.__name__!r} has no {attribute!r}{_apps_in(module) or near}"
            ) from None
    if not isinstance(found, App):
        raise ConfigError(
            f"{module.__name__}:{attribute} is not an App but a {type(found).__name__}{_apps_in(module)}"
        )
    return found


def _apps_in(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    if not names:
        return ""
    return f" (did you mean {' or '.join(f'{module.__name__}:{name}' for name in names[:3])}?)"


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
