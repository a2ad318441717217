"""Make a store from a URL. Only this module knows all stores; it imports the one that the URL names."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, unquote_plus, urlsplit

from penstock.config import mask_url
from penstock.core.clock import Clock
from penstock.core.errors import ConfigError, StoreReentered, UnknownScheme, did_you_mean
from penstock.core.forks import importing
from penstock.core.ids import check_namespace, check_queue
from penstock.stores.contract import Store

#: Scheme → the package that it needs, and the extra that installs that package.
_DRIVERS = {
    "redis": ("hiredis", "redis"),
    "rediss": ("hiredis", "redis"),
    "redis+sentinel": ("hiredis", "redis"),
    "redis+cluster": ("hiredis", "redis"),
    "rediss+sentinel": ("hiredis", "redis"),
    "rediss+cluster": ("hiredis", "redis"),
    "unix": ("hiredis", "redis"),
}
#: Schemes that a later version will support.
_TO_COME = ("postgresql",)
_SCHEMES = ("memory", "sqlite", *_DRIVERS)
#: Scheme → its options, and the values that each may have.
_OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "memory": {},
    "sqlite": {"durability": ("full", "normal"), "mode": ("0600", "0640", "0644", "0660", "0664", "0666")},
}
_REDIS = set(_DRIVERS)
#: A file in the query of a Redis URL.
_TLS_FILE = re.compile(r"([?&]ssl_(?:ca_certs|certfile|keyfile)=)([^&]+)")


def connect(url: str, *, namespace: str = "", clock: Clock | None = None) -> Store:
    """Return the store at this URL, not opened yet: a store opens itself at its first verb.

    `clock` is for tests. Raises ConfigError, UnknownScheme or MissingExtra.
    """
    parts = _split(url)
    _check_scheme(parts.scheme)
    if namespace:
        check_namespace(namespace)
    given: dict[str, Any] = {"namespace": namespace}
    if clock is not None:
        given["clock"] = clock
    if parts.scheme in _REDIS:
        with _importing(url):
            from penstock.stores.redis.store import RedisStore
        return RedisStore(url, **given)
    given |= _read(parts, url)
    if parts.scheme == "memory":
        with _importing(url):
            from penstock.stores.memory import MemoryStore
        return MemoryStore(parts.netloc, **given)
    with _importing(url):
        from penstock.stores.sqlite import SqliteStore
    return SqliteStore(_file(parts, url), **given)


@contextlib.contextmanager
def _importing(url: str) -> Iterator[None]:
    """Import a store. Raises StoreReentered if this thread is in the middle of such an import."""
    with importing() as reentered:
        try:
            yield
        except (ImportError, AttributeError):
            if not reentered:
                raise
            raise StoreReentered(_shown(url)) from None


def check_url(url: str) -> str:
    """Raise the errors that `connect` would raise for this URL, without making a store.

    Answer: the URL with absolute paths, which names the same store when the working directory has changed.
    """
    parts = _split(url)
    _check_scheme(parts.scheme)
    if parts.scheme in _REDIS:
        with importing():
            from penstock.stores.redis.wire.address import Address
        Address.from_url(url)
        return _TLS_FILE.sub(lambda found: found[1] + quote(_absolute(unquote_plus(found[2]), url)), url)
    _read(parts, url)
    if parts.scheme == "sqlite":
        path = str(_file(parts, url))
        relative = not unquote(parts.path[1:]).startswith("/")
        if relative and unquote(quote(os.fsencode(path))) == path:  # a URL cannot hold all names of folders
            return f"{parts.scheme}:///{quote(path)}" + (f"?{parts.query}" if parts.query else "")
    return url


def shown_store(store: Store) -> str:
    """The name of a store for people, without secrets. Says whether its file does not exist yet."""
    path: Path | None = getattr(store, "path", None)
    new = path is not None and not path.exists()
    return mask_url(store.url) + ("; this file is new" if new else "")


def _absolute(path: str, url: str) -> str:
    try:
        return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)
    except OSError:
        raise ConfigError(
            f"{_shown(url)!r} is relative to the working directory, which was removed: give an absolute path"
        ) from None


def _read(parts: SplitResult, url: str) -> dict[str, str]:
    if parts.fragment:
        raise ConfigError(f"{_shown(url)!r}: write %23 for the '#' in it")
    if parts.scheme == "memory" and (parts.path.strip("/") or "/" in parts.netloc):
        raise ConfigError(f"{_shown(url)!r}: a memory store has a name at most, no path: write memory://NAME")
    if parts.scheme == "memory" and parts.netloc:
        check_queue(parts.netloc)
    return _query(parts, url)


def _split(url: str) -> SplitResult:
    if not isinstance(url, str) or "://" not in url:
        given = mask_url(url) if isinstance(url, str) else url
        raise ConfigError(
            f"{given!r} is not the URL of a store: write sqlite:///jobs.db for a file in the working "
            "directory, sqlite:////var/lib/jobs.db for an absolute path, or memory://"
        )
    try:
        return urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"{_shown(url)!r} cannot be read as a URL: {error}") from None


def _check_scheme(scheme: str) -> None:
    if scheme in _TO_COME:
        raise ConfigError(
            f"this version of Penstock has no store for {scheme}:// yet; "
            "use redis://HOST, sqlite:///FILE or memory://"
        )
    if scheme not in _SCHEMES:
        known = ", ".join(f"{name}://" for name in _SCHEMES)
        near = did_you_mean(scheme, (*_SCHEMES, *_TO_COME))
        raise UnknownScheme(f"no store has the scheme {scheme!r}{near}; the schemes are {known}")
    if scheme not in _DRIVERS:
        return
    package, extra = _DRIVERS[scheme]
    from penstock.core.installation import require_extra

    require_extra(extra, (package,), f"{scheme}://")


def _query(parts: SplitResult, url: str) -> dict[str, str]:
    known = _OPTIONS[parts.scheme]
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ConfigError(
            f"{_shown(url)!r}: write the options after the '?' as name=value pairs, joined by '&'"
        ) from None
    options: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            has = f"; its options are {', '.join(known)}" if known else ", nor any other"
            raise ConfigError(f"{parts.scheme}:// has no option {name!r}{did_you_mean(name, known) or has}")
        if name in options:
            raise ConfigError(f"{_shown(url)!r} gives {name!r} twice")
        if value not in known[name]:
            raise ConfigError(
                f"{name}={value!r} is not one of {', '.join(known[name])}{did_you_mean(value, known[name])}"
            )
        options[name] = value
    return options


def _file(parts: SplitResult, url: str) -> Path:
    """Return the file of a sqlite:// URL: three slashes for a relative path, four for an absolute one."""
    path = unquote(parts.path[1:])
    if parts.netloc:
        meant = parts.netloc.rpartition("@")[2] + parts.path
        raise ConfigError(
            f"{_shown(url)!r} names a host, and a SQLite file has none: "
            f"three slashes, sqlite:///{meant}, or four for an absolute path"
        )
    if path == ":memory:":
        raise ConfigError("sqlite:///:memory: would lose all jobs with its connection: use memory:// instead")
    if not path or path.endswith("/") or "\0" in path:
        raise ConfigError(f"{_shown(url)!r} names no file: write sqlite:///jobs.db")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ConfigError(
            f"{_shown(url)!r} names an impossible file: its path contains half of a surrogate pair"
        ) from None
    return Path(_absolute(os.path.expanduser(path), url))


def _shown(url: str) -> str:
    """Return the URL without its secrets."""
    without = re.sub(r"(://[^/@:]*):.*@", r"\1:…@", url, flags=re.DOTALL)
    return re.sub(r"(password=)[^&#]*", r"\1…", without)
