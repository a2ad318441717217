"""Fixtures and options for all tests. Fixtures for one folder are in the conftest of that folder."""

from __future__ import annotations

import contextlib
import gc
import itertools
import signal
from collections.abc import Callable, Iterator

import pytest

from tests import marks, order
from tests.servers import (
    SHARED_CLUSTER,
    SHARED_REDIS,
    Cluster,
    RedisServer,
    Sentinels,
    programs,
    redis_cluster,
    redis_program,
    redis_sentinels,
    redis_server,
    redis_tls_server,
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """No garbage to speak of is made while tests are collected: looking for it took a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    marks.mark(items)  # before `-m` selects
    yield
    if (processes := order.processes_of(config)) > 1:
        items[:] = order.dealt(items, processes)


def pytest_collection_finish() -> None:
    """Keep the collected tests from the garbage collector, which would walk all of them again and again."""
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    """Do the same with what a few hundred tests have left: reports, and stores in memory."""
    if next(_finished) % 250 == 0:
        gc.collect()
        gc.freeze()


_finished = itertools.count(1)


@pytest.fixture(scope="module", autouse=True)
def _garbage() -> Iterator[None]:
    """Charge a file of tests with the sockets, files and coroutines that it has left in cycles."""
    yield
    gc.collect()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    programs.may_start = any(item.get_closest_marker(mark) for mark in ("server", "slow", "system"))


@pytest.fixture(scope="session", autouse=True)
def _default_signals() -> Iterator[None]:
    """Start processes with the default actions of signals that the run ignores (`nohup make test &`).

    A process inherits an ignored signal, but no handler. The run itself still ignores these signals.
    """
    ignored = [one for one in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP) if _is_ignored(one)]
    for one in ignored:
        signal.signal(one, lambda *_: None)
    yield
    for one in ignored:
        signal.signal(one, signal.SIG_IGN)


def _is_ignored(number: signal.Signals) -> bool:
    return signal.getsignal(number) == signal.SIG_IGN


# Servers start when a test asks for one, not before. Those of a session are shared by the tests of a process:
# who kills, fills or stops a server takes one of its own.


@pytest.fixture(scope="session")
def redis_path() -> str:
    """The path of the program redis-server, for tests that start it by other means than these fixtures."""
    return redis_program()


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """A plain Redis server that other tests use too."""
    yield SHARED_REDIS.get()
    SHARED_REDIS.close()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster of three masters without replicas that other tests use too."""
    yield SHARED_CLUSTER.get()
    SHARED_CLUSTER.close()


@pytest.fixture
def new_redis(servers: contextlib.ExitStack) -> Callable[..., RedisServer]:
    """`redis_server`, for this test alone."""
    return lambda *settings, **facts: servers.enter_context(redis_server(*settings, **facts))


@pytest.fixture
def new_tls_redis(servers: contextlib.ExitStack) -> Callable[..., RedisServer]:
    """`redis_tls_server`, for this test alone."""
    return lambda *settings, **facts: servers.enter_context(redis_tls_server(*settings, **facts))


@pytest.fixture
def new_sentinels(servers: contextlib.ExitStack) -> Callable[..., Sentinels]:
    """`redis_sentinels`, for this test alone."""
    return lambda *settings, **facts: servers.enter_context(redis_sentinels(*settings, **facts))


@pytest.fixture
def new_cluster(servers: contextlib.ExitStack) -> Callable[..., Cluster]:
    """`redis_cluster`, for this test alone."""
    return lambda *settings, **facts: servers.enter_context(redis_cluster(*settings, **facts))


@pytest.fixture
def servers() -> Iterator[contextlib.ExitStack]:
    """The servers of one test; they end with it."""
    with contextlib.ExitStack() as started:
        yield started
