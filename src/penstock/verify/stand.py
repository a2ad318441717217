"""The store of a run: the user's own, or one that is started for it; and how it is left as it was found."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from penstock.connect import check_url, connect
from penstock.errors import ConfigError
from penstock.store import Store
from penstock.verify import wiping
from penstock.verify.kinds import Ground

__all__ = ["PRIVATE", "Stand", "private_stand", "stand_on"]

#: What `--private` may name.
PRIVATE = ("sqlite",)


@dataclass
class Stand:
    """A store, what can be done to it, and the traces that a run leaves in it.

    `url` is the conductor's way, `worker_url` that of workers and producers. `fresh`: a file that was not
    there before the run, and shall not be there after it.
    """

    ground: Ground
    url: str
    worker_url: str = ""
    file: Path | None = None
    fresh: bool = False
    server: Any = None
    wire: Any = None

    def open(self, namespace: str) -> Store:
        """The store, in this namespace."""
        return connect(self.url, namespace=namespace)

    def wipe(self, namespace: str) -> int:
        """Take all of the run out of the store again; how many keys or rows there were."""
        if self.file is None:
            return wiping.wipe_redis(self.url, namespace)
        if not self.file.exists():
            return 0
        gone = wiping.wipe_file(self.file, namespace)
        if self.fresh:
            wiping.remove_file(self.file)
        return gone

    def left(self, namespace: str) -> int:
        """How many keys or rows of the run there are."""
        if self.file is None:
            return wiping.left_on_redis(self.url, namespace)
        return wiping.left_in_file(self.file, namespace) if self.file.exists() else 0

    def close(self) -> None:
        """End what was started for the run alone."""
        for part in (self.wire, self.server):
            if part is not None:
                with contextlib.suppress(OSError):
                    part.close()


def stand_on(url: str) -> Stand:
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
    return Stand(Ground(f"redis-{mode}" if mode else "redis"), url)


def _on_file(url: str, *, private: bool = False) -> Stand:
    path = Path(getattr(connect(url), "path"))  # noqa: B009 (only a store in a file has one)
    query = urlsplit(url).query
    absolute = f"sqlite:///{quote(str(path))}" + (f"?{query}" if query else "")
    if not path.parent.is_dir():
        raise ConfigError(f"{url}: there is no directory {path.parent}: make it, or name another file")
    return Stand(Ground("sqlite", private=private), absolute, file=path, fresh=not path.exists())


def private_stand(kind: str, folder: Path) -> Stand:
    """A store of the run's own, in this folder."""
    return _on_file(f"sqlite:///{quote(str(folder / 'jobs.db'))}", private=True)
