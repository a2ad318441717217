"""The mark that tests get at collection: `server`, by what they use."""

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


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark what needs a server with `server`."""
    for item in items:
        if _needs_a_server(item):
            item.add_marker(pytest.mark.server)


def _needs_a_server(item: pytest.Item) -> bool:
    if SERVER_FIXTURES.intersection(getattr(item, "fixturenames", ())):
        return True
    chosen = getattr(item, "callspec", None)
    return chosen is not None and any(
        type(value) is str and value in SERVER_STORES for value in chosen.params.values()
    )
