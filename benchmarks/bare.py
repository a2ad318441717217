"""A minimal consumer on Redis, for comparison with a queue's latency: `python benchmarks/bare.py PORT`.

It pops each value that is pushed to one list, and pushes the time of the pop to another list.
"""

from __future__ import annotations

import sys
import time

IN, OUT = "bare:in", "bare:out"


def main() -> None:
    import redis

    client = redis.Redis(port=int(sys.argv[1]))
    while True:
        client.blpop([IN], timeout=0)
        client.rpush(OUT, time.monotonic_ns())


if __name__ == "__main__":
    main()
