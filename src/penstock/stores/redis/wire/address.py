"""The address of a Redis and the credentials for it, from a URL or from a redis-py client."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from penstock.core.errors import ConfigError, did_you_mean
from penstock.core.formats import milliseconds

Mode = Literal["single", "sentinel", "cluster"]

_MODES: dict[str, Mode] = {
    "redis": "single",
    "rediss": "single",
    "unix": "single",
    "redis+sentinel": "sentinel",
    "rediss+sentinel": "sentinel",
    "redis+cluster": "cluster",
    "rediss+cluster": "cluster",
}
_COMMON = ("timeout", "connect_timeout", "wait_replicas", "wait_timeout", "prefix")
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_TLS_FILES = _TLS[:3]
_CERT_REQS = ("required", "none")
_YES_NO = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_PREFIX = re.compile(r"[A-Za-z0-9._:@+=~-]{1,64}")

#: What the server's certificate must be. redis-py writes None for "none".
VERIFY_MODES = {
    None: ssl.CERT_NONE,
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
#: The options of TLS that `connect.py` applies; they have redis-py's names.
TLS_OPTIONS = (
    "ssl_ca_certs",
    "ssl_ca_data",
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_ciphers",
    "ssl_exclude_verify_flags",
    "ssl_include_verify_flags",
    "ssl_keyfile",
    "ssl_min_version",
    "ssl_password",
)

#: The connection settings that are taken from a client; the others concern only the client's own connections.
_TAKEN = re.compile(r"ssl_.+|socket_keepalive|socket_keepalive_options|socket_type|credential_provider")


class Node(NamedTuple):
    """One server: a host and a port, or the path of a socket and port 0."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class Address:
    """The settings of a store before its first connection. Durations are in ms.

    - `nodes`: the server, the sentinels, or some nodes of the cluster.
    - `options`, `sentinel_options`: of TLS and of sockets (`connect.py`), and `credential_provider`.

    The text form contains no secrets.
    """

    mode: Mode
    nodes: tuple[Node, ...]
    db: int = 0
    master: str = ""
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    tls: bool = False
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    sentinel_username: str = field(default="", repr=False)
    sentinel_password: str = field(default="", repr=False)
    sentinel_tls: bool = False
    sentinel_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    timeout: int = 5_000
    connect_timeout: int = 2_000
    wait_replicas: int = 0
    wait_timeout: int = 1_000
    prefix: str = "penstock"

    @classmethod
    def of(cls, url_or_client: Any, **options: Any) -> Address:
        """Make an address from a URL, or from a redis-py client of any kind."""
        if isinstance(url_or_client, str):
            return cls.from_url(url_or_client, **options)
        return cls.of_client(url_or_client, **options)

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Address:
        """Make an address from a URL. Options given here override those of the URL. Raises ConfigError."""
        shown = _shown(url)
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise ConfigError(f"{shown!r} cannot be read as a URL: {error}") from None
        if parts.scheme not in _MODES:
            near = did_you_mean(parts.scheme, _MODES)
            raise ConfigError(f"{shown!r} is not the URL of a Redis{near}: write redis://HOST:PORT")
        given = _query(parts, shown)
        if parts.fragment:
            raise ConfigError(f"{shown!r}: write %23 for the '#' in it")
        if "@" in parts.path and parts.scheme != "unix":
            raise ConfigError(f"{shown!r}: write %2F for a '/' in the password, %40 for an '@' elsewhere")
        user, password = _credentials(parts, shown)
        facts: dict[str, Any] = {"mode": _MODES[parts.scheme], "username": user, "password": password}
        facts |= _place(parts, given, shown)
        facts |= _tls(parts, given)
        for name in ("sentinel_username", "sentinel_password"):
            if name in given:
                facts[name] = given.pop(name)
        facts["sentinel_tls"], facts["sentinel_options"] = facts["tls"], facts["options"]
        return cls(**facts, **_common({**given, **options}))

    @classmethod
    def of_client(cls, client: Any, **options: Any) -> Address:
        """Make an address from the settings of a redis-py client; its connections are not used."""
        manager = getattr(client, "nodes_manager", None)
        pool = getattr(client, "connection_pool", None)
        if manager is not None:
            facts = _of_cluster(manager, client)
        elif hasattr(pool, "sentinel_manager"):
            facts = _of_sentinel(pool)
        elif hasattr(pool, "connection_kwargs"):
            facts = _of_pool(pool)
        else:
            raise ConfigError(
                f"{type(client).__name__} is neither a URL nor a redis-py client: give redis://HOST:PORT, or "
                "a redis.Redis, redis.RedisCluster or one of redis.asyncio"
            )
        return cls(**facts, **_common(dict(options)))

    @property
    def unix(self) -> bool:
        return self.mode == "single" and self.nodes[0].port == 0

    @property
    def url(self) -> str:
        """The URL without secrets."""
        if self.unix:
            return f"unix://{self.nodes[0].host}" + (f"?db={self.db}" if self.db else "")
        hosts = ",".join(map(str, self.nodes))
        tail = f"/{self.master}" if self.master else ""
        tail += f"/{self.db}" if self.db else ""
        return f"{self._scheme(self.mode)}://{hosts}{tail}"

    def at(self, node: Node) -> str:
        """Return the URL of one of its servers, for messages."""
        return f"unix://{node.host}" if node.port == 0 else f"{self._scheme('single')}://{node}"

    def as_mode(self, mode: Mode) -> str:
        """Return the URL to use if the server turns out to run in this other mode."""
        hosts = ",".join(map(str, self.nodes))
        return f"{self._scheme(mode)}://{hosts}" + ("/MASTER_NAME" if mode == "sentinel" else "")

    def _scheme(self, mode: Mode) -> str:
        return ("rediss" if self.tls else "redis") + ("" if mode == "single" else f"+{mode}")


# ── a URL ────────────────────────────────────────────────────────────────────────────────────────


def _query(parts: SplitResult, shown: str) -> dict[str, Any]:
    known: list[str] = [*_COMMON]
    if parts.scheme.startswith("rediss"):
        known += _TLS
    if parts.scheme.endswith("+sentinel"):
        known += ["sentinel_username", "sentinel_password"]
    if parts.scheme == "unix":
        known.append("db")
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ConfigError(
            f"{shown!r}: write the options after the '?' as name=value pairs, joined by '&'"
        ) from None
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name not in known:
            if name in _TLS:
                raise ConfigError(f"{parts.scheme}:// has no TLS, and {name!r} is about it: write rediss://")
            hint = did_you_mean(name, known) or f"; it has {', '.join(known)}"
            raise ConfigError(f"{parts.scheme}:// has no option {name!r}{hint}")
        if name in found:
            raise ConfigError(f"{shown!r} gives {name!r} twice")
        found[name] = os.path.abspath(value) if name in _TLS_FILES else value
    return found


def _credentials(parts: SplitResult, shown: str) -> tuple[str, str]:
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    if user and not password:
        raise ConfigError(f"{shown!r} gives no password: write USER:PASSWORD@, or :PASSWORD@ without a user")
    return unquote(user), unquote(password)


def _place(parts: SplitResult, given: dict[str, Any], shown: str) -> dict[str, Any]:
    """Read the servers, the database and the name of the master from a URL."""
    if parts.scheme == "unix":
        path = unquote(parts.netloc.rpartition("@")[2] + parts.path)
        if not path.startswith("/"):
            raise ConfigError(f"{shown!r} names no socket: write unix:///run/redis.sock")
        return {"nodes": (Node(path, 0),), "db": _db(given.pop("db", ""), shown)}
    mode = _MODES[parts.scheme]
    default = 26379 if mode == "sentinel" else 6379
    hosts = parts.netloc.rpartition("@")[2]
    nodes = tuple(_node(text, default, shown) for text in hosts.split(","))
    if mode == "single" and len(nodes) > 1:
        raise ConfigError(
            f"{shown!r} names {len(nodes)} servers: write {parts.scheme}+cluster://… for a cluster, "
            f"{parts.scheme}+sentinel://…/MASTER_NAME for sentinels"
        )
    path_parts = [unquote(part) for part in parts.path.strip("/").split("/") if part]
    facts: dict[str, Any] = {"nodes": nodes}
    if mode == "sentinel":
        if not path_parts:
            raise ConfigError(
                f"{shown!r} does not say which master: write its name, as in {parts.scheme}://HOST/mymaster"
            )
        facts["master"] = path_parts.pop(0)
    if mode == "cluster" and path_parts not in ([], ["0"]):
        raise ConfigError(f"{shown!r}: a cluster has no databases; leave the /{path_parts[0]} out")
    if len(path_parts) > 1:
        raise ConfigError(f"{shown!r}: what follows the host must be a database's number")
    facts["db"] = _db(path_parts[0] if path_parts else "", shown)
    return facts


def _node(text: str, default: int, shown: str) -> Node:
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]]*)(?::(\d+))?", text)
    if found is None or int(found[2] or 1) not in range(1, 65_536):
        raise ConfigError(f"{shown!r}: {text!r} is not HOST or HOST:PORT")
    return Node(unquote(found[1].strip("[]")) or "localhost", int(found[2] or default))


def _db(text: str, shown: str) -> int:
    if not re.fullmatch(r"[0-9]{0,4}", text, re.ASCII):
        raise ConfigError(f"{shown!r}: {text!r} is not the number of a database")
    return int(text or 0)


def _tls(parts: SplitResult, given: dict[str, Any]) -> dict[str, Any]:
    tls = parts.scheme.startswith("rediss")
    options = {name: given.pop(name) for name in _TLS if name in given}
    asked = options.get("ssl_cert_reqs", "required")
    if asked not in _CERT_REQS:
        hint = did_you_mean(asked, _CERT_REQS)
        raise ConfigError(f"ssl_cert_reqs={asked!r} is not one of {', '.join(_CERT_REQS)}{hint}")
    if tls:
        options["ssl_cert_reqs"] = asked
        options["ssl_check_hostname"] = _yes_no(
            "ssl_check_hostname", options.get("ssl_check_hostname", "true")
        )
    return {"tls": tls, "options": options}


def _yes_no(name: str, text: str) -> bool:
    try:
        return _YES_NO[text.lower()]
    except KeyError:
        raise ConfigError(f"{name}={text!r} is neither true nor false") from None


def _common(given: dict[str, Any]) -> dict[str, Any]:
    """Check the options that all modes have in common."""
    facts: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _COMMON:
            hint = did_you_mean(name, _COMMON) or f"; there are {', '.join(_COMMON)}"
            raise ConfigError(f"a Redis store has no option {name!r}{hint}")
        if name.endswith("timeout"):
            facts[name] = milliseconds(value, what=name)
            if facts[name] == 0:
                raise ConfigError(f"{name}={value!r}: a timeout must be longer than 0")
        elif name == "wait_replicas":
            facts[name] = _count(name, value)
        elif not isinstance(value, str) or not _PREFIX.fullmatch(value):
            raise ConfigError(
                f"prefix={value!r} cannot be a prefix: use up to 64 of the characters "
                "A-Z a-z 0-9 . _ : @ + = ~ -"
            )
        else:
            facts[name] = value
    return facts


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not re.fullmatch(r"\d{1,3}", str(value), re.ASCII):
        raise ConfigError(f"{name}={value!r} is not a number from 0 on")
    return int(value)


def _shown(url: str) -> str:
    """Return the URL without its secrets."""
    url = re.sub(r"://[^?#]*@", "://…@", url)
    return re.sub(r"(password=)[^&#]*", r"\1…", url)


# ── a client ─────────────────────────────────────────────────────────────────────────────────────


def _of_pool(pool: Any) -> dict[str, Any]:
    given = pool.connection_kwargs
    if path := given.get("path"):
        nodes = (Node(str(path), 0),)
    else:
        nodes = (Node(str(given.get("host", "localhost")), int(given.get("port", 6379))),)
    return {"mode": "single", "nodes": nodes, **_settings(given, _speaks_tls(pool.connection_class))}


def _of_sentinel(pool: Any) -> dict[str, Any]:
    sentinels = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
    first = _settings(sentinels[0].connection_kwargs, _speaks_tls(sentinels[0].connection_class))
    return {
        "mode": "sentinel",
        "nodes": tuple(_of_pool(one)["nodes"][0] for one in sentinels),
        "master": pool.service_name,
        **_settings(pool.connection_kwargs, _speaks_tls(pool.connection_class)),
        "sentinel_username": first["username"],
        "sentinel_password": first["password"],
        "sentinel_tls": first["tls"],
        "sentinel_options": first["options"],
    }


def _of_cluster(manager: Any, client: Any) -> dict[str, Any]:
    known = manager.startup_nodes
    given = getattr(manager, "connection_kwargs", None) or client.connection_kwargs
    nodes = tuple(Node(node.host, int(node.port)) for node in known.values())
    tls = bool(given.get("ssl")) or _speaks_tls(given.get("connection_class"))
    return {"mode": "cluster", "nodes": nodes, **_settings(given, tls), "db": 0}


def _settings(given: Mapping[str, Any], tls: bool) -> dict[str, Any]:
    options = {name: value for name, value in given.items() if _TAKEN.fullmatch(name)}
    if tls:
        _check_tls_options(options)
    return {
        "db": int(given.get("db") or 0),
        "username": given.get("username") or "",
        "password": given.get("password") or "",
        "tls": tls,
        "options": options,
    }


def _check_tls_options(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for an option that `tls_context` cannot apply: none is ignored silently."""
    for name, value in options.items():
        if name.startswith("ssl_") and name not in TLS_OPTIONS and value:
            raise ConfigError(
                f"Penstock does not support {name}, which this client has: give a URL, or another client; "
                f"the options of TLS are {', '.join(TLS_OPTIONS)}"
            )
    asked = options.get("ssl_cert_reqs")
    if not isinstance(asked, ssl.VerifyMode) and asked not in VERIFY_MODES:
        known = [name for name in VERIFY_MODES if name]
        hint = did_you_mean(str(asked), known)
        raise ConfigError(f"ssl_cert_reqs={asked!r} is not one of {', '.join(known)}{hint}")


def _speaks_tls(connection_class: Any) -> bool:
    """Return True for a TLS connection class, recognised by its name: sync and async share no base class."""
    return any(base.__name__ == "SSLConnection" for base in getattr(connection_class, "__mro__", ()))
