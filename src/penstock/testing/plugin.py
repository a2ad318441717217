"""The pytest plugin: the fixture `penstock_inline`, and a guard against the accidental use of real stores."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pytest

if TYPE_CHECKING:  # lazy: every pytest run of every project loads this module
    from penstock.app.app import App
    from penstock.testing.inline_app import Inline

_CHOICES = ("chosen", "any")


@pytest.fixture
def penstock_inline() -> Iterator[Callable[..., Inline]]:
    """`box = penstock_inline(app, …)` is `penstock.testing.inline(app, …)` until the end of the test."""
    from penstock.testing.inline_app import inline

    with ExitStack() as stack:

        def begin(app: App, **options: Any) -> Inline:
            return stack.enter_context(inline(app, **options))

        yield begin


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "penstock_store",
        "Stores that apps may use in tests: 'chosen' (in memory, in a temporary folder, by PENSTOCK_URL, or "
        "in a test marked penstock_store; the default) or 'any'.",
        default="chosen",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "penstock_store: apps may open their own stores in this test.")
    choice = config.getini("penstock_store")
    if choice not in _CHOICES:
        raise pytest.UsageError(f"penstock_store = {choice!r} is not one of {', '.join(_CHOICES)}")
    if choice == "chosen":
        from penstock.core.running import store_guards

        guard = _Guard(config.rootpath)
        config.pluginmanager.register(guard, "penstock-guard")
        store_guards.append(guard.check)
        config.add_cleanup(lambda: store_guards.remove(guard.check))


class _Guard:
    """Refuses stores that were not chosen for tests."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._item: pytest.Item | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        self._item = item

    def check(self, url: str) -> None:
        """Raise ConfigError if the store of this URL was not chosen for tests."""
        if self._is_marked() or self._is_temporary(url):
            return
        from penstock.config import mask_url
        from penstock.core.errors import ConfigError
        from penstock.stores.connect import check_url

        chosen = os.environ.get("PENSTOCK_URL")
        if chosen and url == check_url(chosen):
            return

        raise ConfigError(
            f"a test would use the store {mask_url(url)}, which was not chosen for tests: use the fixture "
            "penstock_inline or `with inline(app)`. To allow the store: @pytest.mark.penstock_store on this "
            "test, PENSTOCK_URL, or penstock_store = any in pytest's settings for all tests"
        )

    def _is_marked(self) -> bool:
        return self._item is not None and self._item.get_closest_marker("penstock_store") is not None

    def _is_temporary(self, url: str) -> bool:
        """Whether the store is in memory or in a temporary folder (but not with the tests in the folder)."""
        parts = urlsplit(url)
        if parts.scheme == "memory":
            return True
        if parts.scheme != "sqlite":
            return False
        path = Path(unquote(parts.path[1:])).expanduser().absolute().resolve()
        temporary = Path(tempfile.gettempdir()).resolve()
        return path.is_relative_to(temporary) and not path.is_relative_to(self._root.resolve())
