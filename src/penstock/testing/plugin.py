"""The pytest plugin: the fixture `penstock_inline`, there wherever Penstock is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # every pytest run of every project loads this module: it must cost nothing
    from penstock.app import App
    from penstock.testing.box import Inline


@pytest.fixture
def penstock_inline() -> Iterator[Callable[..., Inline]]:
    """`box = penstock_inline(app)`: until the end of the test the app's jobs are in memory and run when
    the test says so. Options are those of `penstock.testing.inline`."""
    from penstock.testing.box import inline

    with ExitStack() as stack:

        def begin(app: App, **options: Any) -> Inline:
            return stack.enter_context(inline(app, **options))

        yield begin
