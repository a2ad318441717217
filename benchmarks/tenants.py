"""Fair share: how long one tenant's jobs wait behind another's million, and the cost of a fair queue.

    python -m benchmarks.tenants [--url URL] [--large 1000000] [--middle 1000] [--keys 10000] [--plain 100000]

One process drains the queue through the store's verbs, so the results show the order and the cost of the
store alone.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from penstock.core.ids import mint_token
from penstock.core.job import NewJob, State
from penstock.core.lifecycle import Transition
from penstock.core.relations import Tenant
from penstock.stores.connect import connect
from penstock.stores.contract import Settlement, Share, Store

_BATCH = 100
_DONE = Transition(State.COMPLETED)


async def fill(store: Store, queue: str, tenants: list[str | None]) -> None:
    for start in range(0, len(tenants), 2_000):
        some = tenants[start : start + 2_000]
        await store.enqueue(
            [
                NewJob(f"{queue}-{start + n}", "t", b"{}", queue, tenant=None if who is None else Tenant(who))
                for n, who in enumerate(some)
            ]
        )


async def drain(
    store: Store, queue: str, until: dict[str, int] | None = None
) -> dict[str, tuple[int, float]]:
    """Fetch and settle all jobs. Returns, per tenant, the count and the time at its last job."""
    last: dict[str, tuple[int, float]] = {}
    left = dict(until or {})
    began, n = time.perf_counter(), 0
    while until is None or any(left.values()):
        share = Share(queue, _BATCH, _BATCH)
        found = await store.fetch([share], limit=_BATCH, lease=60_000, worker="w", token=mint_token())
        if not found.jobs:
            break
        for job in found.jobs:
            n += 1
            who = job.spec.tenant.key if job.spec.tenant else ""
            last[who] = n, time.perf_counter() - began
            if who in left:
                left[who] -= 1
        await store.settle([Settlement(job.lease, _DONE) for job in found.jobs])
    return last


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--url", default=None)
    parser.add_argument("--large", type=int, default=1_000_000)
    parser.add_argument("--middle", type=int, default=1_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--plain", type=int, default=100_000)
    given = parser.parse_args()
    url = given.url or f"sqlite:///{Path(tempfile.mkdtemp(prefix='penstock-tenants-')) / 'jobs.db'}"
    store = connect(url)
    try:
        await fill(store, "alone", ["middle"] * given.middle)
        alone = (await drain(store, "alone"))["middle"][1]
        await fill(store, "shared", ["large"] * given.large + ["middle"] * given.middle + ["single"])
        last = await drain(store, "shared", {"middle": given.middle, "single": 1})
        print(f"the single job was number {last['single'][0]} of those started (3 tenants)")
        print(f"the {given.middle:,} jobs took {last['middle'][1] / alone:.2f} x their time alone")
        await fill(store, "plain", [None] * given.plain)
        began = time.perf_counter()
        await drain(store, "plain")
        plain = time.perf_counter() - began
        await fill(store, "fair", [f"t{n % given.keys}" for n in range(given.plain)])
        began = time.perf_counter()
        await drain(store, "fair")
        fair = time.perf_counter() - began
        print(f"drain over {given.keys:,} keys: {plain / fair:.2f} of the plain rate")
    finally:
        store.close()


if __name__ == "__main__":
    asyncio.run(main())
