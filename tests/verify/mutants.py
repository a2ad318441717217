"""Mutants: stores with one planted bug each, for the checker to find, and a worker process that uses one.

    python -m tests.verify.mutants FOLDER MUTANT SLOTS

The bug is between the ledger and a correct store: the ledger records what the worker was answered.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from penstock import App, Worker
from penstock.config import load
from penstock.core.job import Lease, Ref, State
from penstock.core.lifecycle import Transition
from penstock.stores.contract import Fetched, HeartbeatRequest, LeaseStatus, Settled, Settlement, Share, Store
from penstock.verify.ledger import Ledger
from penstock.verify.servers import disks
from tests.doubles import Double

#: A completed job is kept for so long (ms), so that the tests can look at it.
KEPT = 600_000


class _Mutant(Double):
    """The store itself; a mutant has another verb or two."""

    def __init__(self, store: Store, folder: Path) -> None:
        super().__init__(store)
        self._folder = folder


class AckBeforeRun(_Mutant):
    """A job is done as soon as it is fetched; what the worker says later is taken note of politely."""

    async def fetch(self, queues: Sequence[Share], **options: Any) -> Fetched:
        fetched = await self._store.fetch(queues, **options)
        done = Transition(State.COMPLETED, keep=KEPT)
        await self._store.settle([Settlement(job.lease, done, result=b"null") for job in fetched.jobs])
        return fetched

    async def extend(self, requests: Sequence[HeartbeatRequest]) -> list[LeaseStatus]:
        return [LeaseStatus.HELD for _ in requests]

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        return [Settled.APPLIED for _ in settlements]


class SettleWithoutToken(_Mutant):
    """Whoever speaks for a running job is taken for its holder."""

    async def extend(self, requests: Sequence[HeartbeatRequest]) -> list[LeaseStatus]:
        leases = await self._signed_anew([request.lease for request in requests])
        return await self._store.extend(
            [replace(request, lease=lease) for request, lease in zip(requests, leases, strict=True)]
        )

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        leases = await self._signed_anew([cast(Lease, one.lease) for one in settlements])
        return await self._store.settle(
            [replace(one, lease=lease) for one, lease in zip(settlements, leases, strict=True)]
        )

    async def _signed_anew(self, leases: Sequence[Lease]) -> list[Lease]:
        jobs = await self._store.get([lease.ref for lease in leases])
        return [
            lease if job is None or job.state is not State.RUNNING else replace(lease, token=job.token or "")
            for lease, job in zip(leases, jobs, strict=True)
        ]


class ReclaimForgetsOne(_Mutant):
    """The first job that is ever reclaimed is judged by nobody, now or later, whoever asks."""

    async def reclaim(self, queues: Sequence[str], **options: Any) -> Fetched:
        fetched = await self._store.reclaim(queues, **options)
        if not fetched.jobs:
            return fetched
        forgotten = self._forgotten(fetched.jobs[0].ref)
        return replace(fetched, jobs=[job for job in fetched.jobs if job.id != forgotten])

    def _forgotten(self, ref: Ref) -> str:
        path = self._folder / "forgotten"
        try:
            with path.open("x") as file:
                file.write(ref.id)
        except FileExistsError:
            pass
        return path.read_text()


class StartsUnsynced(_Mutant):
    """What must be on record before a function is called is written, and not synced."""

    async def extend(self, requests: Sequence[HeartbeatRequest]) -> list[LeaseStatus]:
        return await self._store.extend([replace(request, lasting=False) for request in requests])


MUTANTS: dict[str, type[_Mutant]] = {
    "none": _Mutant,
    "ack before run": AckBeforeRun,
    "settle without token": SettleWithoutToken,
    "reclaim forgets one": ReclaimForgetsOne,
    "starts unsynced": StartsUnsynced,
}


def make(folder: Path, mutant: str = "none") -> tuple[App, Any]:
    """The app and its task, on a store with this bug, watched by the ledger."""
    app = App(f"sqlite:///{folder / 'jobs.db'}")
    app.use_store(cast(Store, MUTANTS[mutant](app.store, folder)))
    Ledger(folder / "ledger", note=mutant).watch(app)

    at_most_once = (folder / "at most once").exists()
    rule: Any = {"delivery": "at-most-once"} if at_most_once else {"retry": 0.05}

    @app.task(name="held", **rule)
    async def held(n: int) -> int:
        """Runs until the test lets this process, or everybody, go on."""
        gates = folder / "go", folder / f"go.{os.getpid()}"
        while not any(gate.exists() for gate in gates):
            await asyncio.sleep(0.01)
        return n

    return app, held


async def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    disks.track_syncs()
    app, _ = make(Path(sys.argv[1]), sys.argv[2])
    worker = Worker(app, concurrency=int(sys.argv[3]), config=load().config)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()


if __name__ == "__main__":
    asyncio.run(main())
