"""The parameters of a run, its folder, and the environment variables that its processes get."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.config import load
from penstock.core.errors import PenstockError

# without the prefix PENSTOCK_: unknown settings are refused
URL = "_PENSTOCK_VERIFY_URL"
NAMESPACE = "_PENSTOCK_VERIFY_NAMESPACE"
LEDGER = "_PENSTOCK_VERIFY_LEDGER"
#: Process id of the conductor. Workers and producers end when that process has ended.
OWNER = "_PENSTOCK_VERIFY_OWNER"
#: Role of the process: supervised, lone or producer. A supervised worker also ends its supervisor.
ROLE = "_PENSTOCK_VERIFY_ROLE"
#: Version of the tasks: 1 or 2. Version 2 lacks one task and has renamed another.
VERSION = "_PENSTOCK_VERIFY_VERSION"

QUEUES = ("main", "keys", "batches", "slow", "flows", "harm")


#: Default lease of a run: short, so that minutes show what otherwise takes hours.
_LEASE = "3s"
#: Settings that a run depends on: it reads the logs, and compares all ended jobs at the end.
_NEEDED = {
    "PENSTOCK_LOG_LEVEL": "info",
    "PENSTOCK_LOG_FORMAT": "text",
    "PENSTOCK_QUEUES": ",".join(QUEUES),
    "PENSTOCK_KEEP_FINISHED_COUNT": "100000000",
    "PENSTOCK_KEEP_DEAD_COUNT": "100000000",
}


@dataclass(frozen=True)
class RunRequest:
    """The parameters of a run.

    `process_share`: the share of jobs in processes of their own; `flow_share`: the share of orders that are
    flows (0 to 1).
    """

    seconds: float
    asked: Sequence[str]  # fault types
    seed: int
    workers: int = 2
    rate: float = 100.0
    process_share: float | None = None
    flow_share: float = 0.02


def settings_of_run() -> dict[str, str]:
    """The PENSTOCK_… variables of a run that override the user's."""
    loaded = load()
    leases = {loaded.source("lease"), loaded.source("heartbeat")}
    return {**_NEEDED, "PENSTOCK_LEASE": _LEASE} if leases == {"default"} else dict(_NEEDED)


class VerifyFailed(PenstockError):
    """The run could not be completed; the message says why, and where the logs are."""


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, the store under test, and the run's own namespace.

    `worker_url`: the URL of the store for workers and producers, if it differs (e.g. through a proxy).
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
        """Create the folders, readable by this user alone: a log may quote the store's errors."""
        for folder in (self.ledger, self.logs, self.folder / "run"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def env(self, **more: str) -> dict[str, str]:
        """The environment of a process of this run: the user's environment and the run's variables."""
        return {
            **os.environ,
            **self.settings,
            URL: self.worker_url or self.url,
            NAMESPACE: self.namespace,
            LEDGER: str(self.ledger),
            OWNER: str(os.getpid()),
            "XDG_RUNTIME_DIR": str(self.folder / "run"),  # keeps liveness locks apart from other workers'
            **more,
        }

    def log_tail(self) -> str:
        """The last line of each log that is not empty, for an error message."""
        return "; ".join(_last_lines(self.logs))


def _last_lines(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.log")):
        with contextlib.suppress(OSError):
            lines = path.read_text(errors="replace").split("\n")
            said = [line for line in lines if line.strip()]
            if said:
                yield f"{path.name}: {said[-1][:200]}"
