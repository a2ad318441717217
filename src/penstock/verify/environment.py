"""The store of a run: the user's own or one started for the run. Afterwards the run's data is removed."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from penstock.core.errors import ConfigError
from penstock.stores.connect import check_url, connect
from penstock.stores.contract import Store
from penstock.verify import wiping
from penstock.verify.run_folder import QUEUES
from penstock.verify.servers.disks import SmallDisk
from penstock.verify.servers.proxy import Proxy

__all__ = ["Capabilities", "Environment", "Proxies", "environment_on", "private_environment"]

#: Size of the disk that is mounted for the file of a run (MB).
_DISK = 512


@dataclass(frozen=True)
class Capabilities:
    """What a run can do to its store.

    `private`: the run started the store itself. `proxy`: clients reach the store through a proxy.
    `small_disk`: the file is on a disk that can be filled.
    """

    store: str  # sqlite, redis, redis-sentinel or redis-cluster
    private: bool = False
    proxy: bool = False
    small_disk: bool = False


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

    def open(self, namespace: str) -> Store:
        """The store, in this namespace."""
        return connect(self.url, namespace=namespace)

    def check(self) -> None:
        """Check that the store answers, before each process of the run finds out. Raises StoreError."""
        with contextlib.closing(self.open("")) as store:
            asyncio.run(store.workers())

    def new_namespace(self) -> str:
        """A new namespace for the run; on a private cluster every shard gets some of its queues."""
        while True:
            namespace = f"{wiping.PREFIX}{secrets.token_hex(4)}"
            if len(set(self.shards_by_queue(namespace).values())) in (0, getattr(self.server, "shards", 0)):
                return namespace

    def shards_by_queue(self, namespace: str) -> dict[str, int]:
        """The shard of each queue of the run on a private cluster; else empty."""
        find = getattr(self.server, "shards_by_queue", None)
        return {} if find is None else find(namespace, QUEUES)

    def wipe(self, namespace: str) -> int:
        """Remove the run's data from the store. Returns the number of keys or rows."""
        if self.file is None:
            from penstock.verify.wiping_redis import wipe_redis

            return wipe_redis(self.url, namespace)
        if not self.file.exists():
            return 0
        gone = wiping.wipe_file(self.file, namespace)
        if self.fresh and not wiping.is_used(self.file):
            wiping.remove_file(self.file)
        return gone

    def left(self, namespace: str) -> int:
        """The number of keys or rows of the run."""
        if self.file is None:
            from penstock.verify.wiping_redis import left_on_redis

            return left_on_redis(self.url, namespace)
        return wiping.left_in_file(self.file, namespace) if self.file.exists() else 0

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
    path = Path(getattr(connect(url), "path"))  # noqa: B009 (only a store in a file has one)
    query = urlsplit(url).query
    absolute = f"sqlite:///{quote(str(path))}" + (f"?{query}" if query else "")
    if not path.parent.is_dir():
        raise ConfigError(f"{url}: there is no directory {path.parent}: create it, or name another file")
    return Environment(Capabilities("sqlite"), absolute, file=path, fresh=not path.exists())


def private_environment(kind: str, folder: Path) -> Environment:
    """Start a store for the run in this folder; `kind` is the value of `--private`."""
    if kind == "sqlite":
        return _private_file(folder)
    check_url("redis://localhost")  # raises if the extra `redis` is not installed
    from penstock.verify.servers.sentinels import PrivateSentinels
    from penstock.verify.servers.servers import PrivateCluster, PrivateRedis

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
    environment.capabilities = Capabilities("sqlite", private=True, small_disk=disk is not None)
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
