"""Steps and child workflows in DBOS on SQLite, in seconds: `python dbos_program.py FILE STEPS MEMBERS`."""

from __future__ import annotations

import json
import sys
import time

from dbos import DBOS  # type: ignore[import-not-found]

DBOS(config={"name": "canvas", "system_database_url": f"sqlite:///{sys.argv[1]}", "run_admin_server": False})


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
def total(members: int) -> int:
    """A group and its body: members are workflows in a queue, which this one waits for."""
    handles = [DBOS.enqueue_workflow("members", number, n) for n in range(members)]
    return sum(handle.get_result() for handle in handles)


def main() -> None:
    """Run the steps, then the group, with the default settings of a queue."""
    DBOS.launch()
    DBOS.register_queue("members")
    steps, members = int(sys.argv[2]), int(sys.argv[3])
    started = time.perf_counter()
    assert stepping(steps) == steps * (steps - 1) // 2
    stepped = time.perf_counter() - started
    started = time.perf_counter()
    assert total(members) == members * (members - 1) // 2
    print(json.dumps({"steps": stepped, "group": time.perf_counter() - started}))
    DBOS.destroy()


if __name__ == "__main__":
    main()
