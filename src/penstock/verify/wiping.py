"""Takes everything of one namespace out of a store, and nothing else."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.clock import SystemClock
from penstock.errors import ConfigError
from penstock.stores.redis.address import Address, Node
from penstock.stores.redis.calls import Call
from penstock.stores.redis.runner import AsyncRunner
from penstock.stores.sqlite.calls import Verb
from penstock.stores.sqlite.runner import Runner
from penstock.stores.sqlite.step import Step
from penstock.stores.sqlite.transactions import Transactions

__all__ = ["PREFIX", "left_in_file", "left_on_redis", "remove_file", "wipe_file", "wipe_redis"]

#: What the names of a run's namespaces begin with; no other one is ever emptied.
PREFIX = "verify-"
_PAGE = 1_000
_PATIENCE = 30_000


def _refuse_others(namespace: str) -> None:
    if not namespace.startswith(PREFIX):
        raise ConfigError(f"namespace={namespace!r} is not one of verify's own: nothing is removed there")


# ── a file ───────────────────────────────────────────────────────────────────────────────────────


def wipe_file(path: Path, namespace: str) -> int:
    """Remove all rows of this namespace, in one transaction; how many there were."""
    _refuse_others(namespace)
    return _ask_file(path, _WIPE, namespace)


def left_in_file(path: Path, namespace: str) -> int:
    """How many rows of this namespace there are."""
    return _ask_file(path, _COUNT, namespace)


def remove_file(path: Path) -> None:
    """A store that was not there before the run, with all that lies beside it."""
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
    shutil.rmtree(path.with_name(f"{path.name}-penstock"), ignore_errors=True)


def _ask_file(path: Path, verb: Verb[[], int], namespace: str) -> int:
    runner = Runner(
        Transactions(
            path,
            namespace=namespace,
            clock=SystemClock(),
            full_sync=True,
            patience=_PATIENCE,
            on_open=lambda step: None,
        )
    )
    try:
        return runner.do(verb)
    finally:
        runner.close(1.0)


def _wipe(step: Step) -> int:
    """A table has the queue of each row, or the namespace; that of the queues goes last."""
    gone = 0
    for table, where in _tables(step):
        # the names are our own
        removed = step.cx.execute(f"DELETE FROM {table} WHERE {where}", (step.namespace,))  # noqa: S608
        gone += removed.rowcount
    return gone


def _count(step: Step) -> int:
    n = 0
    for table, where in _tables(step):
        found = step.cx.execute(f"SELECT count(*) FROM {table} WHERE {where}", (step.namespace,))  # noqa: S608
        n += found.fetchone()[0]
    return n


def _tables(step: Step) -> Iterator[tuple[str, str]]:
    names = step.cx.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'penstock\\_%' ESCAPE '\\' "
        "ORDER BY name = 'penstock_queue'"
    ).fetchall()
    for (table,) in names:
        columns = {row[1] for row in step.cx.execute(f"PRAGMA table_info({table})")}
        if "namespace" in columns:
            yield table, "namespace = ?"
        elif "queue" in columns:
            yield table, "queue IN (SELECT qid FROM penstock_queue WHERE namespace = ?)"


_WIPE, _COUNT = Verb(_wipe), Verb(_count, reads=True)


# ── a Redis ──────────────────────────────────────────────────────────────────────────────────────


def wipe_redis(url: str, namespace: str) -> int:
    """Remove all keys of this namespace, on each master; how many there were."""
    _refuse_others(namespace)
    return asyncio.run(_walk(url, namespace, _unlink))


def left_on_redis(url: str, namespace: str) -> int:
    """How many keys of this namespace there are."""
    return asyncio.run(_walk(url, namespace, _number))


#: What is done with some keys that a master has; how many count.
_Act = Callable[[AsyncRunner, Node, Sequence[bytes]], Awaitable[int]]


async def _walk(url: str, namespace: str, act: _Act) -> int:
    """Over the keys of the namespace, some at a time, master by master: each has a cursor of its own."""
    address = Address.from_url(url)
    runner = AsyncRunner(address)
    pattern = f"{address.prefix}:{{{namespace}/*"
    done = 0
    try:
        for node in await runner.everywhere([Call(None, ask=("PING",))]):
            cursor: Any = "0"
            while True:
                scan = Call(None, ask=("SCAN", cursor, "MATCH", pattern, "COUNT", _PAGE))
                ((cursor, keys),) = _sure(await runner.at(node, [scan]))
                if keys:
                    done += await act(runner, node, keys)
                if int(cursor) == 0:
                    break
    finally:
        runner.close()
    return done


async def _unlink(runner: AsyncRunner, node: Node, keys: Sequence[bytes]) -> int:
    # one by one: keys of one command would have to lie in one slot of a cluster
    return sum(_sure(await runner.at(node, [Call(None, ask=("UNLINK", key)) for key in keys])))


async def _number(runner: AsyncRunner, node: Node, keys: Sequence[bytes]) -> int:
    return len(keys)


def _sure(answers: Sequence[Any]) -> Sequence[Any]:
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers
