"""Workers on a Redis server that fails in many ways: the servers, the load, and the checks against the
ledger.

Threads of the test enqueue all the time, as producers do. Every acknowledged job must end. A refused job is
counted, and must be refused with one of Penstock's errors.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from penstock.client.handle import Handle
from penstock.core.job import Job, State
from penstock.errors import PenstockError
from penstock.verify.ledger import Ledger, Verdict, check
from tests.system.conftest import PATIENCE, Place, Program

#: What is promised is two seconds; a busy machine may take three times as long.
SOON = 6.0


class RedisPlace(Place):
    """A place whose store is a Redis, with a ledger of all that its producers and workers do."""

    def __init__(self, folder: Path, url: str, producer_url: str = "") -> None:
        super().__init__(folder)
        self.url = url
        (folder / "ledger").mkdir()
        self.ledger = Ledger(folder / "ledger")
        file = folder / "tasks.py"
        on_sqlite = "f\"sqlite:///{HERE / 'jobs.db'}\""
        text = file.read_text()
        assert on_sqlite in text
        # only the test's own process produces
        chosen = f"{producer_url or url!r} if os.getpid() == {os.getpid()} else {url!r}"
        file.write_text(text.replace(on_sqlite, chosen))

    def _can_write(self) -> bool:
        return True  # the server does the writing

    def hold(self, n: int, *tasks: str) -> list[Handle[Any]]:
        """Enqueue jobs that run until the gate `go` is opened, and wait until they run."""
        before = len(self.starts())
        calls = [getattr(self.tasks, task).job("go") for task in tasks or ("held",) for _ in range(n)]
        handles: list[Handle[Any]] = self.app.enqueue_many(calls)
        self.until_started(before + len(handles))
        return handles

    def let_go(self, n: int) -> None:
        """Open the gate, and wait until so many of those that it held have ended."""
        self.open("go")
        self.until(lambda: len(self._ends()) >= n, f"{n} held job(s) end")

    def _ends(self) -> list[dict[str, Any]]:
        return [line for line in self.record("end") if line["task"].startswith("held")]

    def works_on(self, since: float) -> float:
        """Wait until a job is started after that instant (monotonic); how long that took."""

        def later() -> list[float]:
            return [line["at"] for line in self.starts() if line["at"] > since]

        took = min(self.until(later, "the worker works on")) - since
        print(f"worked on after {took:.2f} s")
        return float(took)

    def completed(self, handles: list[Handle[Any]], *, within: float = PATIENCE) -> list[Job]:
        jobs = self.until_ended(handles, within=within)
        assert {job.state for job in jobs} <= {State.COMPLETED}
        return jobs

    def done(self, *workers: Program) -> None:
        """All that was ever stored is done, the workers that lived through it end as asked."""
        assert self.app.drained("default", timeout=PATIENCE), f"work is left: {self.counts()}"
        for worker in workers:
            assert not worker.ended, "the worker did not live through it"
            assert "Traceback" not in worker.log
            worker.signal(signal.SIGTERM)
        for worker in workers:
            assert worker.wait() == 0

    def verdict(self) -> Verdict:
        verdict = check(self.ledger.directory, self.app.store)
        print(verdict.report())
        return verdict

    def all_ran_once(self, load: Load, *workers: Program) -> Verdict:
        """The ledger of a store that came back with all that it had ever acknowledged."""
        load.stop()
        self.completed(load.handles)
        self.done(*workers)
        verdict = self.verdict().require()
        assert (verdict.lost, verdict.unfinished, verdict.reruns) == (0, 0, {})
        assert verdict.completed >= len(load.handles)
        return verdict


class Load:
    """Producers in threads of their own, from `with` on: one job after the other, whatever happens."""

    def __init__(self, place: RedisPlace, *, pause: float = 0.01, producers: int = 2) -> None:
        self.handles: list[Handle[Any]] = []
        self.refused: list[PenstockError] = []
        self.longest = 0.0
        self._place = place
        self._pause = pause
        self._over = threading.Event()
        self._broken: list[BaseException] = []
        self._producers = producers
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        assert self._place.tasks  # imported once, before the threads want it
        for _ in range(self._producers):
            self._threads.append(threading.Thread(target=self._produce))
            self._threads[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def stop(self) -> None:
        """No more jobs; whatever was raised that is not an error of ours comes out."""
        self.__exit__()
        kinds = Counter(type(error).__name__ for error in self.refused)
        print(
            f"acknowledged {len(self.handles)}, refused {dict(kinds)}, the longest call {self.longest:.2f} s"
        )
        if self._broken:
            raise self._broken[0]

    def more(self, n: int = 20) -> None:
        """Wait until so many more are acknowledged."""
        wanted = len(self.handles) + n
        self._place.until(lambda: len(self.handles) >= wanted or self._broken, f"{n} more jobs are taken")

    def _produce(self) -> None:
        tasks = self._place.tasks
        kinds = [lambda: tasks.quick.job(1), lambda: tasks.nap.job(0.05), lambda: tasks.nap_thread.job(0.02)]
        number = 0
        while not self._over.is_set():
            number += 1
            began = time.monotonic()
            try:
                self.handles += self._place.app.enqueue_many([kinds[number % 3]()])
            except PenstockError as error:
                self.refused.append(error)
            except BaseException as error:
                self._broken.append(error)
                return
            self.longest = max(self.longest, time.monotonic() - began)
            self._over.wait(self._pause)


@pytest.fixture
def place_at(tmp_path: Path) -> Iterator[Callable[..., RedisPlace]]:
    """A place on the Redis of this URL; the producers may have another one."""
    with contextlib.ExitStack() as places:

        def made(url: str, producer_url: str = "") -> RedisPlace:
            place = RedisPlace(tmp_path, url, producer_url)
            places.callback(place.close)
            return place

        yield made


def warnings(worker: Program, behind: str = "") -> list[str]:
    """The warnings in its log, those behind what the log was at some moment."""
    return [line for line in worker.log[len(behind) :].splitlines() if " WARNING " in line]


def cpu_seconds(worker: Program) -> float:
    """What its processes have used so far."""
    ticks = 0
    for pid in worker.session_processes():
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(facts[11]) + int(facts[12])
    return ticks / os.sysconf("SC_CLK_TCK")
