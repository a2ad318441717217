"""Apps with encryption keys, and apps without keys on the same stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import pytest

from penstock.app.app import App
from penstock.encryption import new_key
from tests.sqlite_files import new_url

KEY, OTHER = new_key(), new_key()


class NewApp(Protocol):
    """Makes an app on the store of the test, as another process has it."""

    def __call__(self, **options: Any) -> App: ...


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://{uuid4().hex}"
    return new_url(tmp_path)


@pytest.fixture
def new_app(url: str) -> Iterator[NewApp]:
    made: list[App] = []

    def make(**options: Any) -> App:
        made.append(App(url, **options))
        return made[-1]

    yield make
    for app in made:
        app.close()


@pytest.fixture
def with_greet(new_app: NewApp) -> Callable[..., App]:
    """Apps that have one task, which greets, and keep who was greeted in `app.state.greeted`."""

    def make(**options: Any) -> App:
        app = new_app(**options)
        app.state.greeted = []

        @app.task(name="greet", retention="1h")
        async def greet(name: str) -> str:
            app.state.greeted.append(name)
            return f"hello {name}"

        return app

    return make
