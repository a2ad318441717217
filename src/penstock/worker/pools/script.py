"""The script that a worker was started as, imported again where a child process runs its tasks."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType

from penstock.core.errors import ConfigError

__all__ = ["import_script", "refuse_while_importing", "whereabouts"]

_importing = False


def whereabouts() -> tuple[str | None, str | None]:
    """What this process runs as its `__main__`: the module of `python -m …`, the file of `python …`."""
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return None if spec is None else spec.name, None if file is None else os.path.abspath(file)


def import_script(module_name: str | None, file: str | None) -> ModuleType:
    """Import it under another name than `__main__`, so that its `if __name__ == "__main__":` holds."""
    global _importing
    _importing = True
    try:
        if module_name is not None:
            module = importlib.import_module(module_name)
        elif file is not None:
            # without a __spec__, as any script that is run; the task's names come out as the worker's do
            module = ModuleType("__mp_main__")
            module.__file__ = file
            sys.modules["__mp_main__"] = module
            SourceFileLoader("__mp_main__", file).exec_module(module)
        else:
            raise ConfigError(
                "a process task that was typed at a prompt cannot run in another process: put it into a file"
            )
        sys.modules["__mp_main__"] = sys.modules["__main__"] = module
        return module
    finally:
        _importing = False


def refuse_while_importing() -> None:
    """Called where a worker starts: a child that imports its worker's script must not become another."""
    if _importing:
        raise ConfigError(
            "this script starts a worker whenever it is imported, and a process task has to import it: "
            'put the start under `if __name__ == "__main__":`'
        )
