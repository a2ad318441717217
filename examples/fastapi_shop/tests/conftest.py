"""Each test has empty tables, and an app whose jobs run when the test says so."""

import os
import tempfile
from collections.abc import Iterator

import pytest

folder = tempfile.TemporaryDirectory(prefix="shop-")
os.environ["DATABASE_URL"] = f"sqlite:///{folder.name}/shop.db"
os.environ["STAFF"] = "ann:secret bob:other"

from fastapi.testclient import TestClient
from penstock.testing import Inline, inline

from shop.app import app
from shop.database import Base, engine
from shop.web import web


@pytest.fixture(autouse=True)
def _tables() -> Iterator[None]:
    Base.metadata.create_all(engine)
    yield
    Base.metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture
def box() -> Iterator[Inline]:
    with inline(app) as box:
        yield box


@pytest.fixture
def client(box: Inline) -> Iterator[TestClient]:
    with TestClient(web) as client:
        yield client
