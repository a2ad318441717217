"""Five workers, an entry every second, a killed worker and a wrong clock: every instant is enqueued once."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from penstock.stores.connect import connect
from tests.system.conftest import Place, Program

_WORKERS = 5
#: Sixty by hand: `PERIODIC_SECONDS=60 pytest tests/system/test_periodic.py`.
_SECONDS = int(os.environ.get("PERIODIC_SECONDS", "10"))

_TICKER = '''\
"""A worker whose only task recurs; nothing of its jobs is kept."""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

url, ahead = sys.argv[1], float(sys.argv[2])
if ahead:
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + ahead
    time.time_ns = lambda: real_ns() + int(ahead * 1e9)

from penstock import App, Worker, current_job

app = App(url)
here = Path(__file__).parent


@app.periodic("* * * * * *")
@app.task(name="tick", retry="50ms")
async def tick() -> None:
    with (here / "ran").open("a") as record:
        record.write(json.dumps({"id": current_job().id, "pid": os.getpid()}) + "\\n")


async def main() -> None:
    worker = Worker(app)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()


asyncio.run(main())
'''


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, place: Place) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{place.file}"
    own: str = request.getfixturevalue("new_redis")().url
    return own


def test_five_workers_run_each_instant_once_while_one_is_killed(place: Place, url: str) -> None:
    (place.folder / "ticker.py").write_text(_TICKER)
    # on one host there is one clock; only a server's can be another than a worker's
    ahead = ["3" if n == 0 and url.startswith("redis") else "0" for n in range(_WORKERS)]
    programs = [place.start("ticker.py", url, one) for one in ahead]
    place.until(lambda: len(_ran(place)) >= 1, "they work")
    first = len(_ran(place))
    place.until(lambda: len(_ran(place)) >= first + _SECONDS // 2, "half of it", within=_SECONDS + 30)
    killed = _killed(programs)
    place.until(lambda: len(_ran(place)) >= first + _SECONDS, "all of it", within=_SECONDS + 30)
    for program in programs:
        if not program.ended:
            program.signal(signal.SIGTERM)
    assert [program.wait() for program in programs if program is not killed] == [0] * (_WORKERS - 1)
    ran = _ran(place)
    instants = sorted({_instant(line["id"]) for line in ran})
    assert [b - a for a, b in itertools.pairwise(instants)] == [1.0] * (len(instants) - 1), "none is missed"
    again = Counter(line["id"] for line in ran)
    # an attempt that died with its worker runs again, as that of any job
    assert {id for id, n in again.items() if n > 1} <= {
        line["id"] for line in ran if line["pid"] == killed.pid
    }
    _nothing_more_was_enqueued(url, instants)


def _ran(place: Place) -> list[dict[str, str]]:
    path: Path = place.folder / "ran"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _instant(id: str) -> float:
    return datetime.fromisoformat(id.partition("@")[2]).timestamp()


def _killed(programs: list[Program]) -> Program:
    """The last one; not the one whose clock is ahead."""
    programs[-1].signal(signal.SIGKILL)
    programs[-1].wait()
    return programs[-1]


def _nothing_more_was_enqueued(url: str, instants: list[float]) -> None:
    """By the store's own count: what ran, and the few that are enqueued ahead."""
    store = connect(url)
    (entry,) = asyncio.run(store.entries()).entries
    store.close()
    assert entry.enqueued == entry.watermark / 1000 - instants[0] + 1
    assert 0 <= entry.watermark / 1000 - instants[-1] <= 3
