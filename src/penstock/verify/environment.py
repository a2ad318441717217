"""The store of a run: the user's own, or one that is started for it; and how it is left as it was found."""

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
from penstock.verify.servers.proxy import Relay

__all__ = ["Capabilities", "Environment", "Proxies", "environment_on", "private_environment"]

#: Room for the file of a run, where there may be a disk of its own (MB).
_DISK = 512


@dataclass(frozen=True)
class Capabilities:
    """What a run can do to its store: which it is, whether it is its own, whether a relay is before it."""

    store: str  # sqlite, redis, redis-sentinel or redis-cluster
    private: bool = False
    relay: bool = False
    small_disk: bool = False


@dataclass
class Environment:
    """A store, what can be done to it, and the traces that a run leaves in it.

    `url` is the conductor's way, `worker_url` that of workers and producers. `fresh`: a file that was not
    there before the run, and shall not be there after it, unless somebody else has begun to use it.
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
        """A store that does not answer is an error at once, not one in each process. Raises StoreError."""
        with contextlib.closing(self.open("")) as store:
            asyncio.run(store.workers())

    def new_namespace(self) -> str:
        """For the run alone; on a Cluster of its own one in which each master has some of the queues."""
        while True:
            namespace = f"{wiping.PREFIX}{secrets.token_hex(4)}"
            if len(set(self.homes(namespace).values())) in (0, getattr(self.server, "shards", 0)):
                return namespace

    def homes(self, namespace: str) -> dict[str, int]:
        """The shard of each queue of the run, on a Cluster of its own; else nothing."""
        find = getattr(self.server, "homes", None)
        return {} if find is None else find(namespace, QUEUES)

    def wipe(self, namespace: str) -> int:
        """Take all of the run out of the store again; how many keys or rows there were."""
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
        """How many keys or rows of the run there are."""
        if self.file is None:
            from penstock.verify.wiping_redis import left_on_redis

            return left_on_redis(self.url, namespace)
        return wiping.left_in_file(self.file, namespace) if self.file.exists() else 0

    def close(self) -> None:
        """End what was started for the run alone."""
        for part in (self.proxies, self.server):
            if part is not None:
                with contextlib.suppress(OSError):
                    part.close()


def environment_on(url: str) -> Environment:
    """The user's own store; raises ConfigError for one that other processes cannot share."""
    check_url(url)
    scheme = urlsplit(url).scheme
    if scheme == "memory":
        raise ConfigError(
            f"{url} lives in one process, and a run needs processes that can be killed: name a store "
            "that they share, as sqlite:///jobs.db or redis://localhost"
        )
    if scheme == "sqlite":
        return _on_file(url)
    mode = scheme.partition("+")[2]
    if mode:
        return Environment(Capabilities(f"redis-{mode}"), url)
    try:
        relay = Relay.before(url)
    except ConfigError:  # over TLS, or by a socket: without a relay, then
        return Environment(Capabilities("redis"), url)
    return Environment(Capabilities("redis", relay=True), url, relay.url, proxies=Proxies([relay]))


def _on_file(url: str) -> Environment:
    path = Path(getattr(connect(url), "path"))  # noqa: B009 (only a store in a file has one)
    query = urlsplit(url).query
    absolute = f"sqlite:///{quote(str(path))}" + (f"?{query}" if query else "")
    if not path.parent.is_dir():
        raise ConfigError(f"{url}: there is no directory {path.parent}: make it, or name another file")
    return Environment(Capabilities("sqlite"), absolute, file=path, fresh=not path.exists())


def private_environment(kind: str, folder: Path) -> Environment:
    """A store of the run's own, in this folder; `kind` is what `--private` may name."""
    if kind == "sqlite":
        return _private_file(folder)
    check_url("redis://localhost")  # names the extra that is missing
    from penstock.verify.servers.sentinels import PrivateSentinels
    from penstock.verify.servers.servers import PrivateCluster, PrivateRedis

    if kind == "redis-cluster":
        cluster = PrivateCluster(folder / "cluster", relayed=True)
        capabilities = Capabilities("redis-cluster", private=True, relay=True)
        return Environment(capabilities, cluster.url, server=cluster, proxies=Proxies(cluster.relays))
    if kind == "redis-sentinel":
        watched = PrivateSentinels(folder / "sentinels")
        return Environment(Capabilities("redis-sentinel", private=True), watched.url, server=watched)
    server = PrivateRedis(folder / "redis", "always" if kind == "redis-always" else "everysec")
    relay = Relay.before(server.url)
    capabilities = Capabilities("redis", private=True, relay=True)
    return Environment(capabilities, server.url, relay.url, server=server, proxies=Proxies([relay]))


def _private_file(folder: Path) -> Environment:
    """On a disk that can be filled, where such a one can be had."""
    disk = None
    with contextlib.suppress(ConfigError):
        disk = SmallDisk(folder / "disk", _DISK)
    environment = _on_file(f"sqlite:///{quote(str((disk.folder if disk else folder) / 'jobs.db'))}")
    environment.capabilities = Capabilities("sqlite", private=True, small_disk=disk is not None)
    environment.server = disk
    return environment


class Proxies:
    """One relay, or one before each node of a cluster, as one."""

    def __init__(self, relays: Sequence[Relay]) -> None:
        self._relays = relays

    def reset(self) -> None:
        for relay in self._relays:
            relay.reset()

    def half_open(self, seconds: float) -> None:
        self._all(lambda relay: relay.half_open(seconds))

    def latency(self, ms: float, seconds: float) -> None:
        self._all(lambda relay: relay.latency(ms, seconds))

    def close(self) -> None:
        for relay in self._relays:
            relay.close()

    def _all(self, act: Callable[[Relay], None]) -> None:
        with ThreadPoolExecutor(len(self._relays)) as threads:
            list(threads.map(act, self._relays))
