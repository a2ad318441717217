"""The least that a consumer on Redis can be: `python benchmarks/bare.py PORT` takes what is pushed to one
list, and pushes the instant at which it had it to another. What a queue's latency is compared with.
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
