"""The store of a run: the user's own or one started for the run.

Afterwards the run's namespace is removed from it, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from penstock.core.clock import SystemClock
from penstock.core.errors import ConfigError
from penstock.stores.connect import check_url, connect
from penstock.stores.contract import Capability
from penstock.stores.sql.transaction_context import TransactionContext
from penstock.stores.sql.transactions import Verb
from penstock.stores.sqlite.runner import Runner
from penstock.stores.sqlite.transactions import FileTransactions
from penstock.verify.run_folder import QUEUES
from penstock.verify.servers.disks import SmallDisk
from penstock.verify.servers.proxy import Proxy

#: Size of the disk that is mounted for the file of a run (MB).
_DISK = 512


@dataclass(frozen=True)
class Capabilities:
    """What a run can do to its store.

    `private`: the run started the store itself. `proxy`: clients reach the store through a proxy.
    `small_disk`: the file is on a disk that can be filled. `can`: what the store declares.
    """

    store: str  # sqlite, redis, redis-sentinel or redis-cluster
    private: bool = False
    proxy: bool = False
    small_disk: bool = False
    can: frozenset[Capability] = frozenset(Capability)


@dataclass
class Environment:
    """The store of a run, its capabilities, and the removal of the run's data.

    `url` is the URL for the conductor, `worker_url` the one for workers and producers. `fresh`: the file did
    not exist before the run; it is removed afterwards, unless another program has begun to use it.
    """

    capabilities: Capabilities
    url: str
    worker_url: str = ""
    file: Path | None = None
    fresh: bool = False
    server: Any = None
    proxies: Proxies | None = None

    def check(self) -> None:
        """Check that the store answers, before each process of the run finds out. Raises StoreError."""
        with contextlib.closing(connect(self.url, namespace="")) as store:
            asyncio.run(store.queues())

    def new_namespace(self) -> str:
        """A new namespace for the run; on a private cluster every shard gets some of its queues."""
        while True:
            namespace = f"{PREFIX}{secrets.token_hex(4)}"
            if len(set(self.shards_by_queue(namespace).values())) in (0, getattr(self.server, "shards", 0)):
                return namespace

    def shards_by_queue(self, namespace: str) -> dict[str, int]:
        """The shard of each queue of the run on a private cluster; else empty."""
        find = getattr(self.server, "shards_by_queue", None)
        return {} if find is None else find(namespace, QUEUES)

    def wipe(self, namespace: str) -> int:
        """Remove the run's data from the store. Returns the number of keys or rows."""
        if self.file is None:
            return wipe_redis(self.url, namespace)
        if not self.file.exists():
            return 0
        gone = wipe_file(self.file, namespace)
        if self.fresh and not is_used(self.file):
            remove_file(self.file)
        return gone

    def left(self, namespace: str) -> int:
        """The number of keys or rows of the run."""
        if self.file is None:
            return left_on_redis(self.url, namespace)
        return left_in_file(self.file, namespace) if self.file.exists() else 0

    def close(self) -> None:
        """Stop the proxies and servers that were started for the run."""
        for part in (self.proxies, self.server):
            if part is not None:
                with contextlib.suppress(OSError):
                    part.close()


def environment_on(url: str) -> Environment:
    """The environment of the user's own store. Raises ConfigError for a store that processes cannot share."""
    check_url(url)
    scheme = urlsplit(url).scheme
    if scheme == "memory":
        raise ConfigError(
            f"{url} exists in one process only, and a run needs several processes: use a store that "
            "processes can share, e.g. sqlite:///jobs.db or redis://localhost"
        )
    if scheme == "sqlite":
        return _on_file(url)
    mode = scheme.partition("+")[2]
    if mode:
        return Environment(Capabilities(f"redis-{mode}"), url)
    try:
        proxy = Proxy.before(url)
    except ConfigError:  # TLS or a Unix socket: run without a proxy
        return Environment(Capabilities("redis"), url)
    return Environment(Capabilities("redis", proxy=True), url, proxy.url, proxies=Proxies([proxy]))


def _on_file(url: str) -> Environment:
    store = connect(url)
    path = Path(getattr(store, "path"))  # noqa: B009 (only a store in a file has one)
    query = urlsplit(url).query
    absolute = f"sqlite:///{quote(str(path))}" + (f"?{query}" if query else "")
    if not path.parent.is_dir():
        raise ConfigError(f"{url}: there is no directory {path.parent}: create it, or name another file")
    return Environment(
        Capabilities("sqlite", can=store.capabilities), absolute, file=path, fresh=not path.exists()
    )


def private_environment(kind: str, folder: Path) -> Environment:
    """Start a store for the run in this folder; `kind` is the value of `--private`."""
    if kind == "sqlite":
        return _private_file(folder)
    check_url("redis://localhost")  # raises if the extra `redis` is not installed
    from penstock.verify.servers.clusters import PrivateCluster
    from penstock.verify.servers.servers import PrivateRedis, PrivateSentinels

    if kind == "redis-cluster":
        cluster = PrivateCluster(folder / "cluster", proxied=True)
        capabilities = Capabilities("redis-cluster", private=True, proxy=True)
        return Environment(capabilities, cluster.url, server=cluster, proxies=Proxies(cluster.proxies))
    if kind == "redis-sentinel":
        watched = PrivateSentinels(folder / "sentinels")
        return Environment(Capabilities("redis-sentinel", private=True), watched.url, server=watched)
    server = PrivateRedis(folder / "redis", "always" if kind == "redis-always" else "everysec")
    proxy = Proxy.before(server.url)
    capabilities = Capabilities("redis", private=True, proxy=True)
    return Environment(capabilities, server.url, proxy.url, server=server, proxies=Proxies([proxy]))


def _private_file(folder: Path) -> Environment:
    """A SQLite file, on a small disk if one can be mounted."""
    disk = None
    with contextlib.suppress(ConfigError):
        disk = SmallDisk(folder / "disk", _DISK)
    environment = _on_file(f"sqlite:///{quote(str((disk.folder if disk else folder) / 'jobs.db'))}")
    environment.capabilities = replace(environment.capabilities, private=True, small_disk=disk is not None)
    environment.server = disk
    return environment


class Proxies:
    """The proxies of a run (one per node of a cluster) as one."""

    def __init__(self, proxies: Sequence[Proxy]) -> None:
        self._proxies = proxies

    def reset(self) -> None:
        for proxy in self._proxies:
            proxy.reset()

    def half_open(self, seconds: float) -> None:
        self._all(lambda proxy: proxy.half_open(seconds))

    def latency(self, ms: float, seconds: float) -> None:
        self._all(lambda proxy: proxy.latency(ms, seconds))

    def close(self) -> None:
        for proxy in self._proxies:
            proxy.close()

    def _all(self, act: Callable[[Proxy], None]) -> None:
        with ThreadPoolExecutor(len(self._proxies)) as threads:
            list(threads.map(act, self._proxies))


# ── removing the data of a run ───────────────────────────────────────────────────────────────────


#: Prefix of the namespaces of runs; a namespace without it is never emptied.
PREFIX = "verify-"
_PATIENCE = 30_000
#: Keys of Redis that are looked for in one call.
_PAGE = 1_000
_JOBS = "SELECT seq FROM penstock_job WHERE queue IN (SELECT qid FROM penstock_queue WHERE namespace = ?)"
#: Tables whose rows belong to rows of other tables, and which of their rows are those of a namespace.
_OF_OTHERS = {
    "penstock_flow_node": "flow IN (SELECT fid FROM penstock_flow WHERE namespace = ?)",
    "penstock_flow_addition": "flow IN (SELECT fid FROM penstock_flow WHERE namespace = ?)",
    "penstock_step": f"job IN ({_JOBS})",
    "penstock_memory": f"job IN ({_JOBS})",
}


def refuse_others(namespace: str) -> None:
    """Raise ConfigError if this namespace does not belong to a run."""
    if not namespace.startswith(PREFIX):
        raise ConfigError(
            f"namespace={namespace!r} does not belong to a verify run: nothing is removed from it"
        )


# ── a file ───────────────────────────────────────────────────────────────────────────────────────


def wipe_file(path: Path, namespace: str) -> int:
    """Remove all rows of this namespace in one transaction. Returns their number."""
    refuse_others(namespace)
    return _ask_file(path, _WIPE, namespace)


def left_in_file(path: Path, namespace: str) -> int:
    """The number of rows of this namespace."""
    return _ask_file(path, _COUNT, namespace)


def is_used(path: Path) -> bool:
    """Whether this file has rows of any namespace, or tables that do not belong to Penstock."""
    return _ask_file(path, _USED, "") > 0


def remove_file(path: Path) -> None:
    """Remove a store file with its -wal, -shm and -penstock companions."""
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
    shutil.rmtree(path.with_name(f"{path.name}-penstock"), ignore_errors=True)


def _ask_file(path: Path, verb: Verb[[], int], namespace: str) -> int:
    runner = Runner(
        FileTransactions(
            path,
            namespace=namespace,
            clock=SystemClock(),
            full_sync=True,
            patience=_PATIENCE,
            on_open=lambda tx: None,
        )
    )
    try:
        return runner.run_sync(namespace, verb)
    finally:
        runner.close(1.0)


def _wipe(tx: TransactionContext) -> int:
    """Delete the namespace's rows table by table, in the order in which they refer to each other."""
    gone = 0
    for table, where in _tables(tx):
        removed = tx.execute(f"DELETE FROM {table} WHERE {where}", (tx.namespace,))  # noqa: S608 (our own names)
        gone += removed.rowcount
    return gone


def _count(tx: TransactionContext) -> int:
    n = 0
    for table, where in _tables(tx):
        found = tx.execute(f"SELECT count(*) FROM {table} WHERE {where}", (tx.namespace,))  # noqa: S608 (our own names)
        n += found.fetchone()[0]
    return n


def _used(tx: TransactionContext) -> int:
    """Count user tables and rows; queues with a number of 0 or below belong to the file itself."""
    (n,) = tx.execute(
        "SELECT count(*) FROM sqlite_master WHERE type = 'table' "
        "AND name NOT LIKE 'penstock\\_%' ESCAPE '\\' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    ).fetchone()
    for table in ("penstock_queue WHERE qid > 0", "penstock_job", "penstock_worker", "penstock_signal"):
        n += tx.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 (our own names)
    return int(n)


def _tables(tx: TransactionContext) -> Iterator[tuple[str, str]]:
    yield from _OF_OTHERS.items()
    names = tx.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'penstock\\_%' ESCAPE '\\' "
        "ORDER BY name = 'penstock_queue'"
    ).fetchall()
    for (table,) in names:
        columns = {row[1] for row in tx.execute(f"PRAGMA table_info({table})")}
        if table in _OF_OTHERS:
            continue
        if "namespace" in columns:
            yield table, "namespace = ?"
        elif "queue" in columns:
            yield table, "queue IN (SELECT qid FROM penstock_queue WHERE namespace = ?)"


_WIPE, _COUNT, _USED = Verb(_wipe), Verb(_count, reads=True), Verb(_used, reads=True)


# ── Redis ────────────────────────────────────────────────────────────────────────────────────────


def wipe_redis(url: str, namespace: str) -> int:
    """Remove all keys of this namespace on each master. Returns their number."""
    refuse_others(namespace)
    return asyncio.run(_walk(url, namespace, remove=True))


def left_on_redis(url: str, namespace: str) -> int:
    """The number of keys of this namespace."""
    return asyncio.run(_walk(url, namespace, remove=False))


async def _walk(url: str, namespace: str, *, remove: bool) -> int:
    """Count the namespace's keys in pages, master by master, or remove them and count what was removed."""
    # not at the top: the extra `redis` may not be installed
    from penstock.stores.redis.layout import LAYOUT
    from penstock.stores.redis.wire.address import Address
    from penstock.stores.redis.wire.async_runner import AsyncRunner
    from penstock.stores.redis.wire.calls import Call

    address = Address.from_url(url)
    runner = AsyncRunner(address)
    pattern = f"{address.prefix}:{LAYOUT}:{{{namespace}/*"
    found = 0
    try:
        for node in await runner.everywhere([Call(None, ask=("PING",))]):
            cursor: Any = "0"
            while True:
                scan = Call(None, ask=("SCAN", cursor, "MATCH", pattern, "COUNT", _PAGE))
                ((cursor, keys),) = _raise_errors(await runner.at(node, [scan]))
                if remove and keys:
                    # one command per key: in a cluster the keys of one command must be in the same slot
                    unlinks = [Call(None, ask=("UNLINK", key)) for key in keys]
                    found += sum(_raise_errors(await runner.at(node, unlinks)))
                else:
                    found += len(keys)
                if int(cursor) == 0:
                    break
    finally:
        runner.close()
    return found


def _raise_errors(answers: Sequence[Any]) -> Sequence[Any]:
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers
