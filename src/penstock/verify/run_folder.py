"""Where a run keeps its things, and how its processes are told."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.config import load
from penstock.core.errors import PenstockError

__all__ = [
    "LEDGER",
    "NAMESPACE",
    "OWNER",
    "QUEUES",
    "ROLE",
    "URL",
    "VERSION",
    "RunFolder",
    "VerifyFailed",
    "settings_of_run",
]

# not PENSTOCK_…: those are settings, and unknown ones are refused
URL = "_PENSTOCK_VERIFY_URL"
NAMESPACE = "_PENSTOCK_VERIFY_NAMESPACE"
LEDGER = "_PENSTOCK_VERIFY_LEDGER"
#: The process whose run this is; who is of it ends when that one is gone.
OWNER = "_PENSTOCK_VERIFY_OWNER"
#: Whether a worker has a supervisor, which then ends with it.
ROLE = "_PENSTOCK_VERIFY_ROLE"
#: Which version of the tasks: 1, or 2, which lacks one and has renamed another.
VERSION = "_PENSTOCK_VERIFY_VERSION"

QUEUES = ("main", "keys", "batches", "slow", "harm")


#: Leases of a run, unless the settings say otherwise: short, so that minutes show what takes hours.
_LEASE = "3s"
#: What a run cannot do without: it goes by what logs say, and compares all ended jobs in the end.
_NEEDED = {
    "PENSTOCK_LOG_LEVEL": "info",
    "PENSTOCK_LOG_FORMAT": "text",
    "PENSTOCK_QUEUES": ",".join(QUEUES),
    "PENSTOCK_KEEP_FINISHED_COUNT": "100000000",
    "PENSTOCK_KEEP_DEAD_COUNT": "100000000",
}


def settings_of_run() -> dict[str, str]:
    """The PENSTOCK_… of a run that go before the user's own."""
    loaded = load()
    leases = {loaded.source("lease"), loaded.source("heartbeat")}
    return {**_NEEDED, "PENSTOCK_LEASE": _LEASE} if leases == {"default"} else dict(_NEEDED)


class VerifyFailed(PenstockError):
    """The run could not be carried to its end; the message says why, and where the logs are."""


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, the store that is put to the test, and the namespace that is the run's own.

    `worker_url`: how workers and producers reach the store, if that is another way, as through a relay.
    """

    folder: Path
    url: str
    namespace: str
    worker_url: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)  # PENSTOCK_… of the workers

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def make(self) -> None:
        """The folders, for us alone: a log may quote what a store says."""
        for folder in (self.ledger, self.logs, self.folder / "run"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def env(self, **more: str) -> dict[str, str]:
        """The environment of a process of this run: the user's own, and what it must know."""
        return {
            **os.environ,
            **self.settings,
            URL: self.worker_url or self.url,
            NAMESPACE: self.namespace,
            LEDGER: str(self.ledger),
            OWNER: str(os.getpid()),
            "XDG_RUNTIME_DIR": str(self.folder / "run"),  # proofs of life, apart from those of other workers
            **more,
        }

    def log_tail(self) -> str:
        """The last line of each log that has one, for a message."""
        return "; ".join(_last_lines(self.logs))


def _last_lines(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.log")):
        with contextlib.suppress(OSError):
            lines = path.read_text(errors="replace").split("\n")
            said = [line for line in lines if line.strip()]
            if said:
                yield f"{path.name}: {said[-1][:200]}"
