"""No-ops with Penstock: `penstock worker penstock_program:app`, and `python penstock_program.py COMMAND`.

BENCH_KIND: async or thread tasks.
"""

import os
import sys

import counts

from penstock import App

app = App(counts.URL)

if os.environ.get("BENCH_KIND") == "thread":

    @app.task(name="noop")
    def noop() -> None:
        counts.count()

    @app.task(name="stamp")
    def stamp(sent: int) -> None:
        counts.instant(sent)

else:

    @app.task(name="noop")
    async def noop() -> None:
        counts.count()

    @app.task(name="stamp")
    async def stamp(sent: int) -> None:
        counts.instant(sent)


def fill(jobs: int) -> None:
    """Enqueue this many no-ops in bulk."""
    for start in range(0, jobs, 10_000):
        app.enqueue_many([noop.job() for _ in range(min(10_000, jobs - start))])


if __name__ == "__main__":
    if sys.argv[1] == "concurrent":
        import uvloop

        uvloop.run(counts.aproduce("penstock", noop.aenqueue, stamp.aenqueue))
    elif sys.argv[1] == "fill":
        fill(int(sys.argv[2]))
    else:
        counts.produce("penstock", noop.enqueue, stamp.enqueue)
    app.close()
