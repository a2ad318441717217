"""What the tests of the Redis store share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stores.redis.asking import Asker


@pytest.fixture(params=["async", "sync"])
def ask(request: pytest.FixtureRequest) -> Iterator[Asker]:
    """One of the runners; `ask.to(url)` first."""
    asker = Asker(request.param)
    yield asker
    asker.close()
