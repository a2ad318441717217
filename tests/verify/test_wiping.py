"""A run's namespace is removed completely, and no other namespace is changed."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from penstock import App, Batch
from penstock.errors import ConfigError
from penstock.verify.environment import Environment, environment_on
from penstock.workflows import chain, immutable
from tests.servers import Cluster, RedisServer
from tests.servers.shared import remove_keys

OURS, OTHERS = "verify-abcd", "verify-ab"


def _fill(url: str, namespace: str) -> App:
    """Something of every kind that a namespace may have, in several queues."""
    app = App(url, namespace=namespace)

    @app.task(name="plain")
    def plain(n: int) -> None: ...

    @app.task(name="alone", queue="unique", unique=True)
    def alone(n: int) -> None: ...

    @app.task(name="ordered", queue="keys", concurrency_key="n", ordered=True)
    def ordered(n: int) -> None: ...

    @app.task(name="many", queue="batches", batch=Batch(max_size=10))
    def many(items: list[int]) -> None: ...

    for n in range(3):
        for task in (plain, plain.using(delay="1h"), alone, ordered, ordered.using(queue=f"q{n}"), many):
            task.enqueue(n)
    chain(plain.job(1), immutable(plain.job(2))).enqueue()
    app.signal("packed", key=7)
    plain.using(id="here").enqueue(1)
    app.handle("gone", task=plain).cancel()
    return app


def _check(environment: Environment, ours: App, others: App) -> None:
    before = environment.left(OTHERS)
    assert before > 0
    had = environment.left(OURS)
    assert had > 10
    assert environment.wipe(OURS) == had
    assert environment.left(OURS) == 0
    assert environment.left(OTHERS) == before
    assert others.handle("here", task="plain").status() == "available"
    assert environment.wipe(OURS) == 0
    for end in (ours, others, environment):
        end.close()


def test_of_a_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    ours, others = _fill(url, OURS), _fill(url, OTHERS)
    _check(environment_on(url), ours, others)


def test_of_a_redis(redis: RedisServer) -> None:
    try:
        ours, others = _fill(redis.url, OURS), _fill(redis.url, OTHERS)
        _check(environment_on(redis.url), ours, others)
    finally:
        remove_keys([redis], "verify-ab")


def test_of_a_cluster(cluster: Cluster) -> None:
    ours, others = _fill(cluster.url, OURS), _fill(cluster.url, OTHERS)
    environment = environment_on(cluster.url)
    _check(environment, ours, others)
    assert environment.wipe(OTHERS) > 10


@pytest.mark.parametrize("namespace", ["", "shop", "verify"])
def test_a_namespace_that_is_no_runs_own_is_never_emptied(tmp_path: Path, namespace: str) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    _fill(url, OTHERS).close()
    with pytest.raises(ConfigError, match="does not belong to a verify run"):
        environment_on(url).wipe(namespace)
    assert environment_on(url).left(OTHERS) > 10


def test_a_new_file_that_somebody_else_has_begun_to_use_stays(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    environment = environment_on(url)
    ours, others = _fill(url, OURS), _fill(url, OTHERS)
    ours.close()
    assert environment.fresh
    assert environment.wipe(OURS) > 10
    assert others.handle("here", task="plain").status() == "available"
    others.close()


def test_a_new_file_with_a_table_of_another_program_stays(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    environment = environment_on(f"sqlite:///{file}")
    _fill(environment.url, OURS).close()
    with contextlib.closing(sqlite3.connect(file)) as cx:
        cx.execute("CREATE TABLE customer (name TEXT)")
    assert environment.wipe(OURS) > 10
    assert file.exists()


def test_a_new_file_that_nobody_else_uses_goes(tmp_path: Path) -> None:
    environment = environment_on(f"sqlite:///{tmp_path / 'jobs.db'}")
    _fill(environment.url, OURS).close()
    assert environment.wipe(OURS) > 10
    assert list(tmp_path.iterdir()) == []
