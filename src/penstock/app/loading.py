"""Loads an App by `"module:attribute"`, or raises an error of one clear line."""

from __future__ import annotations

import logging
import os
import sys
from types import ModuleType
from typing import Any

from penstock.app.app import App
from penstock.app.user_modules import AppBroken, import_module
from penstock.core.errors import ConfigError, did_you_mean

__all__ = ["AppBroken", "enable_own_loggers", "load_app"]


def load_app(spec: str, *, tasks: bool = True) -> App:
    """Load the app, set its `spec`, and with `tasks` import the modules of its `include`.

    Modules of the working directory are found. Raises ConfigError if the spec is wrong, AppBroken if user
    code fails.
    """
    module_name, colon, attribute = spec.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if module_name.endswith(".py") or "/" in module_name:
        written = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigError(f"{spec!r} is not an app: write the module, not its file, as in {written}:app")
    if not module_name or (colon and not attribute):
        raise ConfigError(f"{spec!r} is not an app: write module:attribute, as in tasks:app")
    module = import_module(module_name)
    if not colon:
        raise ConfigError(f"{spec!r} is not an app: write module:attribute{_apps_in(module)}")
    app = _find(module, attribute)
    app.spec = spec
    if tasks:
        app.import_tasks()
    enable_own_loggers()
    return app


def enable_own_loggers() -> None:
    """Let Penstock's loggers log: `logging.config` disables all loggers that exist, unless it is told not to.

    An app that configures its own log rarely means to silence the worker.
    """
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.partition(".")[0] == "penstock" and isinstance(logger, logging.Logger):
            logger.disabled = False


# ── private ──────────────────────────────────────────────────────────────────────────────────────


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
            f"{module.__name__}:{attribute} is not an App but of the type {type(found).__name__}"
            f"{_apps_in(module)}"
        )
    return found


def _apps_in(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    if not names:
        return ""
    return f" (did you mean {' or '.join(f'{module.__name__}:{name}' for name in names[:3])}?)"
