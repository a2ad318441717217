"""Check one Redis server: version, role, cluster, clients, clock; `durability_checks` checks the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.stores.contract import Finding, Level
from penstock.stores.redis.access_checks import Access, access
from penstock.stores.redis.durability_checks import eviction, memory, persistence, replicas
from penstock.stores.redis.server_facts import ServerFacts, percent

__all__ = ["findings"]

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
