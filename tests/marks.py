"""Marks that tests get at collection: `server` by what they use, retries by `timing`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

#: Fixtures that start a server, and the values of parameters that choose a store on one.
SERVER_FIXTURES = {
    "redis",
    "cluster",
    "redis_path",
    "new_redis",
    "new_tls_redis",
    "new_sentinels",
    "new_cluster",
    "browser",
}
SERVER_STORES = {"redis", "redis-cluster", "cluster"}

RETRIES = 2


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark what needs a server with `server`, and give the tests marked `timing` their retries."""
    for item in items:
        if _needs_a_server(item):
            item.add_marker(pytest.mark.server)
        if (timing := item.get_closest_marker("timing")) is not None:
            _require_reason(item, timing)
            item.add_marker(pytest.mark.flaky(reruns=RETRIES))


def _needs_a_server(item: pytest.Item) -> bool:
    if SERVER_FIXTURES.intersection(getattr(item, "fixturenames", ())):
        return True
    chosen = getattr(item, "callspec", None)
    return chosen is not None and any(
        type(value) is str and value in SERVER_STORES for value in chosen.params.values()
    )


def _require_reason(item: pytest.Item, timing: pytest.Mark) -> None:
    reason = timing.args[0] if len(timing.args) == 1 and not timing.kwargs else None
    if not isinstance(reason, str) or not reason.strip():
        raise pytest.UsageError(
            f"{item.nodeid}: say why it depends on the machine's speed: @pytest.mark.timing('reason')"
        )
