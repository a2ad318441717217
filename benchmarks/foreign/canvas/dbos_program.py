"""Workflows of DBOS on SQLite: `python dbos_program.py run FILE SHAPE N` prints seconds.

A member is a workflow in a queue with the default settings. The body is the workflow that waits for them.
"""

from __future__ import annotations

import os
import sys
import time

from dbos import DBOS  # type: ignore[import-not-found]

DBOS(
    config={
        "name": "canvas",
        "system_database_url": f"sqlite:///{sys.argv[2]}",
        "run_admin_server": False,
        "log_level": "ERROR",
    }
)


@DBOS.step()  # type: ignore[untyped-decorator]
def add(n: int) -> int:
    return n


@DBOS.workflow()  # type: ignore[untyped-decorator]
def number(n: int) -> int:
    return n


@DBOS.workflow()  # type: ignore[untyped-decorator]
def stepping(steps: int) -> int:
    return sum(add(n) for n in range(steps))


@DBOS.workflow()  # type: ignore[untyped-decorator]
def chained(n: int) -> int:
    """Child workflows, one after the other, each with the result of the one before."""
    found = 7
    for _ in range(n):
        found = number(found)
    return found


@DBOS.workflow()  # type: ignore[untyped-decorator]
def total(members: int) -> int:
    handles = [DBOS.enqueue_workflow("members", number, n) for n in range(members)]
    return sum(handle.get_result() for handle in handles)


def run(shape: str, n: int) -> None:
    if shape == "chord":
        assert total(n) == n * (n - 1) // 2
    elif shape == "chain":
        assert chained(n) == 7
    elif shape == "chords":
        handles = [DBOS.start_workflow(total, 20) for _ in range(n)]
        assert all(handle.get_result() == 190 for handle in handles)
    else:
        assert stepping(n) == n * (n - 1) // 2


def main() -> None:
    DBOS.launch()
    DBOS.register_queue("members")
    run("chord", 10)
    started = time.perf_counter()
    run(sys.argv[3], int(sys.argv[4]))
    print(time.perf_counter() - started, flush=True)
    os._exit(0)  # what it has in memory goes on for seconds otherwise


if __name__ == "__main__":
    main()
