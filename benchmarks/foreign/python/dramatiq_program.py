"""No-ops with dramatiq: `python -m dramatiq dramatiq_program`, and `python dramatiq_program.py COMMAND`."""

import counts
import dramatiq
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=counts.URL))


@dramatiq.actor
def noop() -> None:
    counts.count()


@dramatiq.actor
def stamp(sent: int) -> None:
    counts.instant(sent)


if __name__ == "__main__":
    counts.produce("dramatiq", noop.send, stamp.send)
