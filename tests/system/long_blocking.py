"""Long blocking, too slow for every test run: `python -m tests.system.long_blocking [SECONDS]`.

A task blocks the event loop for 40 s, and two hold the GIL in C as long, with the default lease and with one
of 2 s. Then another program holds the write lock for 30 s while results finish. Exit code 1 if a lease was
lost or a job ran twice.
"""

from __future__ import annotations

import collections
import sys
import tempfile
import time
from pathlib import Path

from penstock.core.job import State
from tests.system.conftest import Place
from tests.system.test_store_outages import write_lock

_SHORT = {"PENSTOCK_LEASE": "2s", "PENSTOCK_HEARTBEAT": "500ms"}


def main(seconds: int) -> int:
    faults: list[str] = []
    for name, lease in (("the default lease", {}), ("a lease of 2 s", _SHORT)):
        print(f"{seconds} s of silence, {name} ...", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            faults += _silence(Path(folder), seconds, lease)
    print("30 s without the write lock ...", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        faults += _no_lock(Path(folder), 30)
    print("\n".join(f"FAULT: {fault}" for fault in faults) or "all leases were kept, and each job ran once")
    return 1 if faults else 0


def _silence(folder: Path, seconds: int, lease: dict[str, str]) -> list[str]:
    place = Place(folder)
    try:
        worker = place.worker("--processes", "3", "--concurrency", "1", ready=3, **lease)
        tasks = place.tasks
        kinds = {"blocks the loop": tasks.block, "sleeps in C": tasks.hold_gil, "matches": tasks.grind}
        handles = {kind: task.enqueue(seconds) for kind, task in kinds.items()}
        place.until_started(3)
        place.lone(**lease)  # somebody who would take what is lost
        place.until_ended(list(handles.values()), within=3 * seconds)
        for line in place.record("end"):
            (start,) = place.starts(line["id"])[:1]
            print(f"  {line['task']:>10}: {line['at'] - start['at']:5.1f} s, attempt {line['attempt']}")
        print(f"  the supervisor spoke for a silent child {worker.log.count('its supervisor keeps')} times")
        faults = [] if "in block" in worker.log else ["the blocked loop was not reported with its stack"]
        return faults + _ran_once(place, len(handles))
    finally:
        _close(place)


def _no_lock(folder: Path, seconds: int) -> list[str]:
    place = Place(folder)
    try:
        place.worker()
        place.lone()
        tasks = place.tasks
        handles = [task.enqueue("go") for task in (tasks.held, tasks.held_thread, tasks.held_process)]
        place.until_started(3)
        with write_lock(place.file):
            place.open("go")
            place.until(lambda: len(place.record("end")) == 3, "they end")
            time.sleep(seconds)
        began = time.monotonic()
        place.until_ended(handles, within=60)
        print(f"  results stored {time.monotonic() - began:.2f} s after that")
        return _ran_once(place, 3)
    finally:
        _close(place)


def _ran_once(place: Place, n: int) -> list[str]:
    runs = place.runs()
    faults = [f"job {id} was started {times} times" for id, times in runs.items() if times != 1]
    states = collections.Counter(place.counts())
    if states != {State.COMPLETED: n}:
        faults.append(f"of {n} jobs: {dict(states)}")
    return faults


def _close(place: Place) -> None:
    for program in place.programs:
        program.close()
    place.app.close()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 40))
