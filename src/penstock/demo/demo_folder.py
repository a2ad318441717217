"""The folder of a demo run, and the environment variables that its processes get."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from penstock.core.errors import PenstockError
from penstock.demo.children import ParsingChild

__all__ = ["CHILDREN", "LEDGER", "NAMESPACE", "URL", "DemoFailed", "DemoFolder", "DemoProgress"]

# without the prefix PENSTOCK_: unknown settings are refused
URL = "_PENSTOCK_DEMO_URL"
NAMESPACE = "_PENSTOCK_DEMO_NAMESPACE"
LEDGER = "_PENSTOCK_DEMO_LEDGER"
CHILDREN = "_PENSTOCK_DEMO_CHILDREN"


class DemoFailed(PenstockError):
    """The demo could not be completed; the message says why, and where the workers' log is."""


@dataclass(frozen=True)
class DemoFolder:
    """The directory of a run, and the store of its jobs.

    `external_store`: the store is not a file in the directory. `fresh`: only this run uses the namespace.
    `with_ledger`: producers and workers record what they do.
    """

    workdir: Path
    url: str
    namespace: str = ""
    external_store: bool = False
    fresh: bool = False
    with_ledger: bool = True

    @property
    def ledger(self) -> Path:
        return self.workdir / "ledger"

    @property
    def children(self) -> Path:
        """The files in which the child processes show what they do."""
        return self.workdir / "children"

    @property
    def log(self) -> Path:
        return self.workdir / "worker.log"

    def announce(self) -> None:
        """Set the environment variables of this process and its children.

        Call it before importing the tasks.
        """
        os.environ.update({URL: self.url, NAMESPACE: self.namespace, CHILDREN: str(self.children)})
        if self.with_ledger:
            os.environ[LEDGER] = str(self.ledger)
        else:
            os.environ.pop(LEDGER, None)


@dataclass
class DemoProgress:
    """The progress of the demo: completed and enqueued jobs per queue, and a message or an empty text.

    `children`: the child processes that have worked.
    """

    done: dict[str, int] = field(default_factory=dict)
    of: dict[str, int] = field(default_factory=dict)
    news: str = ""
    children: list[ParsingChild] = field(default_factory=list)
