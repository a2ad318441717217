"""Where a run of the demo keeps its things, and how its processes are told."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from penstock.core.errors import PenstockError

__all__ = ["LEDGER", "NAMESPACE", "URL", "DemoFailed", "DemoProgress", "Place"]

# not PENSTOCK_…: those are settings, and unknown ones are refused
URL = "_PENSTOCK_DEMO_URL"
NAMESPACE = "_PENSTOCK_DEMO_NAMESPACE"
LEDGER = "_PENSTOCK_DEMO_LEDGER"


class DemoFailed(PenstockError):
    """The demo could not be run to its end; the message says why, and where the workers' log is."""


@dataclass(frozen=True)
class Place:
    """The directory of a run, and the store of its jobs: a file in it, or `elsewhere`.

    `fresh`: the namespace is this run's alone.
    """

    workdir: Path
    url: str
    namespace: str = ""
    elsewhere: bool = False
    fresh: bool = False

    @property
    def ledger(self) -> Path:
        return self.workdir / "ledger"

    @property
    def log(self) -> Path:
        return self.workdir / "worker.log"

    def announce(self) -> None:
        """Tell this process and those that it will start; do it before the tasks are imported."""
        os.environ.update({URL: self.url, NAMESPACE: self.namespace, LEDGER: str(self.ledger)})


@dataclass
class DemoProgress:
    """How far it is: jobs completed of jobs enqueued, per queue; and the latest news, if there are any."""

    done: dict[str, int] = field(default_factory=dict)
    of: dict[str, int] = field(default_factory=dict)
    news: str = ""
