"""The settings of a server: those that a running one can change, and lmstfy's file `config.toml`.

The file is read as lmstfy reads it; docs/lmstfy.md has what Penstock adds to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from penstock.core.errors import ConfigError, did_you_mean
from penstock.dialects.lmstfy.names import DEFAULT_POOL


class Defaults(msgspec.Struct, frozen=True):
    """lmstfy's defaults; times in seconds. A `ttl` of 0 means forever."""

    delay: int = 0
    ttl: int = 86_400
    tries: int = 1
    ttr: int = 120
    timeout: int = 0


class LmstfySettings(msgspec.Struct, frozen=True):
    """What a reload changes. `accounts`: passwords by name, for the routes that manage tokens."""

    defaults: Defaults = Defaults()
    accounts: dict[str, str] = {}
    access_log: bool = False


_INT64 = (-(2**63), 2**63 - 1)
#: The largest values that a request may have; others are accepted here, as by lmstfy, which refuses requests.
_DEFAULTS = {
    "TTLSecond": 2**32 - 1,
    "DelaySecond": 2**32 - 1,
    "TriesNum": 2**16 - 1,
    "TTRSecond": 2**32 - 1,
    "TimeoutSecond": 2**32 - 1,
}
_PORT = (0, 65_535)
#: Keys of the file, in lower case → how they are written, and their type or range.
_TOP: dict[str, tuple[str, Any]] = {
    "host": ("Host", str),
    "port": ("Port", _PORT),
    "adminhost": ("AdminHost", str),
    "adminport": ("AdminPort", _PORT),
    "loglevel": ("LogLevel", str),
    "logdir": ("LogDir", str),
    "logformat": ("LogFormat", str),
    "enableaccesslog": ("EnableAccessLog", bool),
    "accounts": ("Accounts", dict),
    "adminredis": ("AdminRedis", dict),
    "pool": ("Pool", dict),
    **{name.lower(): (name, _INT64) for name in _DEFAULTS},
}
_POOL: dict[str, tuple[str, Any]] = {
    "addr": ("Addr", str),
    "password": ("Password", str),
    "db": ("DB", (0, 9_999)),
    "poolsize": ("PoolSize", (0, 2**31)),
    "migrateto": ("MigrateTo", str),
    "mastername": ("MasterName", str),
    "version": ("Version", str),
    "sentinelpassword": ("SentinelPassword", str),
    "upstream": ("Upstream", str),
    "upstreamtoken": ("UpstreamToken", str),
    "upstreamtokens": ("UpstreamTokens", dict),
    "upstreamadmin": ("UpstreamAdmin", str),
    "upstreamaccount": ("UpstreamAccount", str),
}
#: The words of logrus → ours.
_LEVELS = {
    **dict.fromkeys(("panic", "fatal", "error"), "error"),
    **dict.fromkeys(("warn", "warning"), "warning"),
    "info": "info",
    **dict.fromkeys(("debug", "trace"), "debug"),
}


class PoolConfig(msgspec.Struct, frozen=True):
    """One pool: the URL of a store, or the address of a running lmstfy, whose jobs `migrate_to` gets.

    - `upstream_token`, `upstream_tokens`: its token for all namespaces, and those by namespace.
    - `upstream_admin`, `upstream_account`: its admin listener, which knows the names of its queues.
    """

    url: str = ""
    migrate_to: str = ""
    upstream: str = ""
    upstream_token: str = ""
    upstream_tokens: dict[str, str] = {}
    upstream_admin: str = ""
    upstream_account: str = ""


class LmstfyConfig(msgspec.Struct, frozen=True):
    """The settings of a file. What it leaves out is None or the default.

    - `admin_url`: the store of tokens and limits; "": that of the default pool.
    - `addresses`: the tables whose store is given as in lmstfy's files, by HOST:PORT of a Redis.
    - `notes`: what has no effect here, one line each.
    """

    pools: dict[str, PoolConfig]
    admin_url: str = ""
    host: str | None = None
    port: int | None = None
    admin_host: str | None = None
    admin_port: int | None = None
    log_level: str | None = None
    log_format: str | None = None
    settings: LmstfySettings = LmstfySettings()
    addresses: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def read_config(path: Path) -> LmstfyConfig:
    """Read a file. Raises ConfigError with a line per problem; unknown keys are named in `notes`."""
    import tomllib  # only servers with a file need it

    try:
        table = tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    return _FileReader(path).read(table)


class _FileReader:
    """Collects problems and unknown keys while it reads one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._problems: list[str] = []
        self._unknown: list[str] = []
        self._notes: list[str] = []
        self._addresses: set[str] = set()

    def read(self, table: Mapping[str, Any]) -> LmstfyConfig:
        top = self._known(table, _TOP, "")
        pools = self._pools(top.get("Pool", {}))
        admin = self._known(top.get("AdminRedis", {}), _POOL, "AdminRedis.")
        level = top.get("LogLevel")
        if level is not None and level.lower() not in _LEVELS:
            self._problem(f"LogLevel={level!r} is not one of {', '.join(_LEVELS)}")
        form = top.get("LogFormat") or None
        if form not in (None, "text", "json"):
            self._notes.append(f"{self._path}: LogFormat={form!r} is neither text nor json: it is text")
            form = "text"
        if top.get("LogDir", "stdout") not in ("", "stdout"):
            self._notes.append(f"{self._path}: LogDir has no effect: the log goes to stderr")
        for name, most in _DEFAULTS.items():
            if name in top and not (name == "TriesNum") <= top[name] <= most:
                says = f"{name}={top[name]} is not possible: requests that leave it out are refused"
                self._notes.append(f"{self._path}: {says}")
        accounts = self._texts(top.get("Accounts", {}), "Accounts")
        made = LmstfyConfig(
            pools=pools,
            admin_url=self._store_url(admin, "AdminRedis") if admin.get("Addr") else "",
            host=top.get("Host"),
            port=top.get("Port"),
            admin_host=top.get("AdminHost"),
            admin_port=top.get("AdminPort"),
            log_level=None if level is None else _LEVELS.get(level.lower()),
            log_format=form,
            settings=LmstfySettings(_defaults(top), accounts, top.get("EnableAccessLog", False)),
            addresses=frozenset(self._addresses),
        )
        if self._problems:
            raise ConfigError("\n".join(self._problems))
        if self._unknown:
            self._notes.append(f"{self._path}: unknown keys are ignored: {', '.join(self._unknown)}")
        return msgspec.structs.replace(made, notes=tuple(self._notes))

    def _problem(self, says: str) -> None:
        self._problems.append(f"{self._path}: {says}")

    def _known(self, table: Mapping[str, Any], keys: dict[str, tuple[str, Any]], at: str) -> dict[str, Any]:
        """The known keys, under the names that lmstfy writes; as there, their case does not matter."""
        found: dict[str, Any] = {}
        for name, value in table.items():
            known = keys.get(name.lower())
            if known is None:
                near = did_you_mean(name, [shown for shown, _ in keys.values()])
                self._unknown.append(f"{at}{name}{near.removeprefix(';')}")
                continue
            shown, kind = known
            if self._fits(value, kind, f"{at}{shown}"):
                found[shown] = value
        return found

    def _fits(self, value: Any, kind: Any, shown: str) -> bool:
        if isinstance(kind, tuple):
            least, most = kind
            if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
                return True
            self._problem(f"{shown}={value!r} is not a whole number from {least} to {most}")
            return False
        if isinstance(value, kind):
            return True
        wanted = {str: "a text", bool: "true or false", dict: "a table"}[kind]
        self._problem(f"{shown}={value!r} is not {wanted}")
        return False

    def _texts(self, table: Mapping[str, Any], at: str) -> dict[str, str]:
        return {name: value for name, value in table.items() if self._fits(value, str, f"{at}.{name}")}

    # ── pools ────────────────────────────────────────────────────────────────────────────────────

    def _pools(self, table: Mapping[str, Any]) -> dict[str, PoolConfig]:
        pools = {
            name: self._pool(name, found)
            for name, found in table.items()
            if self._fits(found, dict, f"Pool.{name}")
        }
        if DEFAULT_POOL not in pools:
            self._problem(f"there is no pool {DEFAULT_POOL!r}: write [Pool.{DEFAULT_POOL}]")
        for name, pool in pools.items():
            if pool.migrate_to and pool.migrate_to not in pools:
                near = did_you_mean(pool.migrate_to, pools)
                self._problem(f"Pool.{name}.MigrateTo={pool.migrate_to!r} is no pool{near}")
            if pool.upstream and not pool.migrate_to:
                self._problem(f"Pool.{name}.Upstream needs MigrateTo: the pool that gets its jobs")
        return {name: self._with_last(name, pool, pools) for name, pool in pools.items()}

    def _with_last(self, name: str, pool: PoolConfig, pools: Mapping[str, PoolConfig]) -> PoolConfig:
        """The pool with the pool that gets its jobs in the end: that may be drained itself."""
        seen, last = [name], pool.migrate_to
        while last in pools and pools[last].migrate_to and last not in seen:
            seen.append(last)
            last = pools[last].migrate_to
        if last in seen:
            self._problem(
                f"Pool.{name}.MigrateTo={pool.migrate_to!r} ends where it begins: name a pool that stays"
            )
        return msgspec.structs.replace(pool, migrate_to=last)

    def _pool(self, name: str, table: Mapping[str, Any]) -> PoolConfig:
        at = f"Pool.{name}"
        found = self._known(table, _POOL, f"{at}.")
        upstream = found.get("Upstream", "").rstrip("/")
        for key in ("Upstream", "UpstreamAdmin"):
            given = found.get(key, "")
            if given and (urlsplit(given).scheme not in ("http", "https") or not urlsplit(given).hostname):
                self._problem(f"{at}.{key}={given!r} is not the address of an lmstfy, as http://HOST:PORT")
        if not found.get("Addr") and not upstream:
            self._problem(f"{at}.Addr is missing: write HOST:PORT of a Redis, or the URL of a store")
        return PoolConfig(
            url="" if upstream else self._store_url(found, at),
            migrate_to=found.get("MigrateTo", ""),
            upstream=upstream,
            upstream_token=found.get("UpstreamToken", ""),
            upstream_tokens=self._texts(found.get("UpstreamTokens", {}), f"{at}.UpstreamTokens"),
            upstream_admin=found.get("UpstreamAdmin", "").rstrip("/"),
            upstream_account=found.get("UpstreamAccount", ""),
        )

    def _store_url(self, found: Mapping[str, Any], at: str) -> str:
        """The URL of a store: `Addr` itself if it is one, else that of lmstfy's Redis."""
        address: str = found.get("Addr", "")
        if "://" in address:
            for key in ("Password", "DB", "MasterName", "SentinelPassword"):
                if found.get(key):
                    self._problem(f"{at}.{key}: write it into the URL in {at}.Addr")
            return address
        self._addresses.add(at)
        password = found.get("Password", "")
        secret = f":{quote(password, safe='')}@" if password else ""
        database = found.get("DB", 0)
        master = found.get("MasterName", "")
        if not master:
            return f"redis://{secret}{address.strip()}" + (f"/{database}" if database else "")
        nodes = ",".join(part.strip() for part in address.split(","))
        url = f"redis+sentinel://{secret}{nodes}/{quote(master, safe='')}"
        url += f"/{database}" if database else ""
        if found.get("SentinelPassword"):
            url += f"?sentinel_password={quote(found['SentinelPassword'], safe='')}"
        return url


def _defaults(top: Mapping[str, Any]) -> Defaults:
    names = {
        "DelaySecond": "delay",
        "TTLSecond": "ttl",
        "TriesNum": "tries",
        "TTRSecond": "ttr",
        "TimeoutSecond": "timeout",
    }
    return Defaults(**{field: top[name] for name, field in names.items() if name in top})
