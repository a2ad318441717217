"""Imports the script that a worker was started as, for the child processes that run its tasks."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType

from penstock.config import Config
from penstock.core.errors import ConfigError
from penstock.worker.pools.messages import WorkerHello

__all__ = ["import_script", "main_location", "refuse_while_importing", "worker_hello"]

_importing = False


def main_location() -> tuple[str | None, str | None]:
    """The `__main__` of this process: the module of `python -m …`, and the file of `python …`."""
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return None if spec is None else spec.name, None if file is None else os.path.abspath(file)


def worker_hello(app: str | None, config: Config | None, nice: int, cpus: tuple[int, ...]) -> WorkerHello:
    """The first message to a child of this process."""
    main_module, main_file = main_location()
    return WorkerHello(
        parent=os.getpid(),
        path=list(sys.path),
        argv=list(sys.argv),
        main_module=main_module,
        main_file=main_file,
        app=app,
        config=config,
        nice=nice,
        cpus=cpus,
    )


def import_script(module_name: str | None, file: str | None) -> ModuleType:
    """Import the worker's script under a name other than `__main__`, so that its main guard is skipped."""
    global _importing
    _importing = True
    try:
        if module_name is not None:
            module = importlib.import_module(module_name)
        elif file is not None:
            # without a __spec__, like any script, so that task names are the same as in the worker
            module = ModuleType("__mp_main__")
            module.__file__ = file
            sys.modules["__mp_main__"] = module
            SourceFileLoader("__mp_main__", file).exec_module(module)
        else:
            raise ConfigError(
                "a process task defined at a prompt cannot run in another process: put it into a file"
            )
        sys.modules["__mp_main__"] = sys.modules["__main__"] = module
        return module
    finally:
        _importing = False


def refuse_while_importing() -> None:
    """Refuse to start a worker in a child process that imports its worker's script."""
    if _importing:
        raise ConfigError(
            "this script starts a worker whenever it is imported, and a process task has to import it: "
            'put the start under `if __name__ == "__main__":`'
        )
