"""Check the settings and the state of Redis servers for risks: lost jobs, or jobs that cannot be stored.

Pure functions from the servers' answers to findings. `INFO` is required. `CONFIG GET` may be forbidden, as by
managed services: then a finding lists the settings that are unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.core.security import is_loopback
from penstock.stores.contract import Finding, Level
from penstock.stores.redis.durability_checks import eviction, memory, persistence, replicas
from penstock.stores.redis.server_facts import ServerFacts, percent, read_config, read_info
from penstock.stores.redis.wire.address import Address
from penstock.stores.redis.wire.calls import Call


class Access(NamedTuple):
    """How we reach the servers: whether with a password or certificate, and by which host beyond loopback."""

    secret: bool = True
    remote: str = ""


def access_of(address: Address) -> Access:
    """The access that an address has."""
    options = address.options
    secret = address.password or options.get("ssl_certfile") or options.get("credential_provider")
    beyond = [node.host for node in address.nodes if node.port and not is_loopback(node.host)]
    return Access(bool(secret), beyond[0] if beyond else "")


def access(server: ServerFacts, ours: Access) -> Iterator[Finding]:
    """Report a server that everyone on the network can use: we use it without a secret, so others can."""
    if ours.secret:
        return
    bound = server.setting("bind")
    if ours.remote:
        where = f"it is reached over the network ({ours.remote})"
    elif server.setting("protected-mode") == "no" and bound is not None and _beyond_loopback(bound):
        where = f"it accepts connections from other machines (bind {bound or '*'}, protected-mode no)"
    else:
        yield Finding(Level.FINE, "access", "no password, but only this machine reaches the server")
        return
    yield Finding(
        Level.WARNING,
        "access",
        f"the server asks for no password, and {where}: everyone there can read, change and remove jobs",
        "set requirepass or ACL users, and write the URL as redis://:PASSWORD@HOST",
    )


def _beyond_loopback(bound: str) -> bool:
    """`bound`: the setting `bind`, such as "127.0.0.1 -::1"; "" stands for every address."""
    addresses = [word.removeprefix("-") for word in bound.split()]
    return not addresses or any(not is_loopback(address) for address in addresses)


# ── one server: version, role, cluster, clients, clock; `durability_checks` checks the rest ──


_OLDEST = (6, 2)
_MOST_SKEW = 1_000
#: A number of clients above this share of the limit is a warning.
_CLOSE = 0.85
_WITH_SECRET = Access()
_FINE, _WARNING, _ERROR = Level.FINE, Level.WARNING, Level.ERROR


def findings(
    info: Mapping[str, Any],
    config: Mapping[str, Any] | None,
    *,
    mode: str,
    now_here_ms: int,
    now_there_ms: int,
    wait_replicas: int,
    ours: Access = _WITH_SECRET,
) -> list[Finding]:
    """Return all findings about one server, including FINE ones.

    - `mode`: single, sentinel or cluster, as in the URL.
    - `config`: None if CONFIG is forbidden; single settings may be missing.
    - `now_there_ms`: the server's TIME; `now_here_ms`: the local time at the same moment.
    - `ours`: how we reach it.
    """
    server = ServerFacts(info, config, mode, wait_replicas)
    return [
        *_version(server),
        *_role(server),
        *eviction(server),
        *memory(server),
        *persistence(server),
        *replicas(server),
        *_cluster(server),
        *_clients(server),
        *access(server, ours),
        *_clock(now_there_ms - now_here_ms),
        *_unknown(server),
    ]


# ── version and role ──


def _version(server: ServerFacts) -> Iterator[Finding]:
    parts = re.match(r"(\d+)\.(\d+)", server.fact("redis_version"))
    if server.fact("valkey_version") or not parts or (int(parts[1]), int(parts[2])) >= _OLDEST:
        yield Finding(_FINE, "server", server.name)
    else:
        oldest = ".".join(map(str, _OLDEST))
        yield Finding(
            _ERROR,
            "server",
            f"{server.name} is too old: Penstock's scripts need Redis {oldest} or later",
            f"upgrade to Redis {oldest} or later, or to any Valkey",
        )
    if server.number("loading"):
        yield Finding(_WARNING, "server", "the server is loading its data, and accepts no jobs until then")


def _role(server: ServerFacts) -> Iterator[Finding]:
    if not server.is_replica:
        return
    master = f"{server.fact('master_host')}:{server.fact('master_port')}"
    if server.setting("replica-read-only") == "no":
        why = f"this is a replica of {master} that accepts writes: its next synchronisation erases them"
    else:
        why = f"this is a replica of {master}: it refuses new jobs"
    yield Finding(
        _ERROR,
        "role",
        why,
        "use the URL of the master, or redis+sentinel:// or redis+cluster://, which find the master",
    )


# ── cluster, clients, clock, settings ──


def _cluster(server: ServerFacts) -> Iterator[Finding]:
    clustered = server.fact("cluster_enabled") == "1"
    if clustered and server.mode != "cluster":
        yield Finding(_ERROR, "cluster", "this is a node of a cluster", "write redis+cluster://HOST,HOST")
    elif clustered and server.setting("cluster-require-full-coverage") == "yes":
        yield Finding(
            _WARNING,
            "cluster",
            "when one part of the cluster is lost, all of it stops, queues on healthy masters too "
            "(cluster-require-full-coverage yes)",
            "CONFIG SET cluster-require-full-coverage no on every node",
        )
    elif not clustered and server.mode == "cluster" and server.fact("redis_mode"):
        yield Finding(_ERROR, "cluster", "this is not a node of a cluster", "write redis://HOST")


def _clients(server: ServerFacts) -> Iterator[Finding]:
    clients, limit = server.number("connected_clients"), server.number("maxclients")
    if limit and clients > _CLOSE * limit:
        yield Finding(
            _WARNING,
            "clients",
            f"{clients:,} are connected, {percent(clients, limit)} of maxclients ({limit:,}): above it the "
            "connections of producers and workers are refused",
            "raise maxclients, or find the clients with many open connections (CLIENT LIST)",
        )


def _clock(ahead: int) -> Iterator[Finding]:
    if abs(ahead) <= _MOST_SKEW:
        yield Finding(_FINE, "clock", "the server's clock and this machine's agree within a second")
        return
    yield Finding(
        _WARNING,
        "clock",
        f"the server's is {abs(ahead) / 1000:,.1f} s {'ahead of' if ahead > 0 else 'behind'} ours: its clock "
        "says when jobs are due and expire, so instants that are given here (run_at, expires) come "
        f"{'early' if ahead > 0 else 'late'} by that",
        "set both clocks by NTP",
    )


def _unknown(server: ServerFacts) -> Iterator[Finding]:
    if not server.config_known:
        yield Finding(
            _FINE,
            "settings",
            "CONFIG is forbidden: the sync interval of the disk and min-replicas-to-write are unknown; "
            "see your provider's documentation",
        )


# ── all servers ──


#: Settings to read by `CONFIG GET`, one by one: several at once need Redis 7, and `*` would return passwords.
SETTINGS = (
    "save",
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "stop-writes-on-bgsave-error",
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "replica-read-only",
    "cluster-require-full-coverage",
    "bind",
    "protected-mode",
)
#: Commands to send to each master; `examined` reads the answers.
QUESTIONS = [
    Call(None, ask=command)
    for command in [("TIME",), ("INFO",), *(("CONFIG", "GET", name) for name in SETTINGS)]
]


def examined(
    answers: Mapping[Any, Sequence[Any]], *, address: Address, before_ms: int, after_ms: int
) -> list[Finding]:
    """Return the findings about all masters, from their answers to QUESTIONS.

    `before_ms`, `after_ms`: when the commands were sent and answered. Raises the error of a required answer.
    """
    by_node: dict[str, list[Finding]] = {}
    for node, (moment, info, *settings) in answers.items():
        for answer in (moment, info):
            if isinstance(answer, Exception):
                raise answer
        there = int(moment[0]) * 1000 + int(moment[1]) // 1000
        config: dict[str, str] = {}
        for setting in settings:
            if not isinstance(setting, Exception):  # forbidden
                config |= read_config(setting)
        by_node[str(node)] = findings(
            read_info(info),
            config or None,
            mode=address.mode,
            now_here_ms=min(max(there, before_ms), after_ms),  # the answer was made between these instants
            now_there_ms=there,
            wait_replicas=address.wait_replicas,
            ours=access_of(address),
        )
    return merged(by_node)


def merged(by_node: Mapping[str, Iterable[Finding]]) -> list[Finding]:
    """Merge the findings of several servers: common findings once, the others with their nodes."""
    nodes: dict[Finding, list[str]] = {}
    for node, found in by_node.items():
        for finding in found:
            nodes.setdefault(finding, []).append(node)
    return [
        finding
        if len(on) == len(by_node)
        else msgspec.structs.replace(finding, why=f"on {', '.join(on)}: {finding.why}")
        for finding, on in nodes.items()
    ]
