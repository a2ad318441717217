"""No-ops with huey: `python huey_program.py COMMAND`, `worker` among them."""

import logging
import sys

import counts
from huey import RedisHuey

app = RedisHuey("bench", url=counts.URL, results=False)


@app.task(name="noop")
def noop() -> None:
    counts.count()


@app.task(name="stamp")
def stamp(sent: int) -> None:
    counts.instant(sent)


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        logging.basicConfig(level=logging.WARNING)
        logging.getLogger("huey").setLevel(logging.WARNING)
        app.create_consumer(workers=2, worker_type="thread", periodic=False).run()
    else:
        counts.produce("huey", noop, stamp)
