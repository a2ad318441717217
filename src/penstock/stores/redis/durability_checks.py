"""Check the durability of a Redis server: memory, persistence, replicas."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.formats import size_text
from penstock.stores.contract import Finding, Level
from penstock.stores.redis.server_facts import ServerFacts, percent

#: Memory use above this share of the limit is a warning.
_CLOSE = 0.85
_FINE, _WARNING, _ERROR = Level.FINE, Level.WARNING, Level.ERROR


# ── memory ──


def eviction(server: ServerFacts) -> Iterator[Finding]:
    policy, limit = server.fact("maxmemory_policy"), server.number("maxmemory")
    way_out = "CONFIG SET maxmemory-policy noeviction; a cache belongs on a server of its own"
    if policy in ("", "noeviction"):
        yield Finding(
            _FINE, "eviction", "noeviction: when memory is full, new jobs are refused and none is evicted"
        )
    elif not limit:
        yield Finding(
            _WARNING,
            "eviction",
            f"maxmemory-policy is {policy}: harmless only as long as maxmemory is not set (it is 0 now)",
            way_out,
            loses_jobs=True,
        )
    elif policy.startswith("volatile"):
        yield Finding(
            _WARNING,
            "eviction",
            f"maxmemory-policy is {policy}: at {size_text(limit)} Redis evicts keys with an expiry. "
            "Jobs are not in such keys, but unique keys or remembered ids may be",
            way_out,
            loses_jobs=True,
        )
    else:
        yield Finding(
            _ERROR,
            "eviction",
            f"maxmemory-policy is {policy}: at {size_text(limit)} Redis evicts whole queues without an error",
            way_out,
            loses_jobs=True,
        )
    if evicted := server.number("evicted_keys"):
        yield Finding(
            _WARNING,
            "eviction",
            f"{evicted:,} keys have been evicted because memory was full since the server started; "
            "they may have contained jobs",
            way_out,
        )


def memory(server: ServerFacts) -> Iterator[Finding]:
    used, limit = server.number("used_memory"), server.number("maxmemory")
    whose, way_out = "maxmemory", "raise maxmemory, or let workers drain the queues"
    if not limit:
        limit = server.number("total_system_memory")
        whose, way_out = "the machine's memory", "set maxmemory below it, so that new jobs are refused first"
    if not limit:
        return
    says = f"{size_text(used)} in use, {percent(used, limit)} of {whose} ({size_text(limit)})"
    if used < _CLOSE * limit:
        yield Finding(_FINE, "memory", says)
    elif used < limit:
        yield Finding(
            _WARNING, "memory", f"{says}: soon new jobs are refused, or the system kills Redis", way_out
        )
    else:
        yield Finding(_ERROR, "memory", f"{says}: new jobs are refused", way_out)


# ── persistence ──


def persistence(server: ServerFacts) -> Iterator[Finding]:
    snapshots = server.setting("save")
    if server.number("loading"):  # Redis turns its append-only file off while it reads it: `server` says so
        return
    if server.number("aof_enabled"):
        yield from _append_only(server)
    elif snapshots is None:
        yield Finding(
            _WARNING,
            "persistence",
            "there is no append-only file (appendonly no): a crash loses all jobs since the last snapshot, "
            "and the settings of snapshots cannot be read (CONFIG is forbidden)",
            "set appendonly yes, or the equivalent setting of your provider",
            loses_jobs=True,
        )
    elif snapshots == "":
        also = "; its replicas then copy the empty data set" if server.number("connected_slaves") else ""
        yield Finding(
            _ERROR,
            "persistence",
            f"nothing is written to disk (appendonly no, no save): a restart loses every job{also}",
            "CONFIG SET appendonly yes, and put it into redis.conf",
            loses_jobs=True,
        )
    else:
        yield Finding(
            _WARNING,
            "persistence",
            f'there are snapshots only (save "{snapshots}"): a crash loses all jobs since the last one',
            "CONFIG SET appendonly yes, and put it into redis.conf",
            loses_jobs=True,
        )
    yield from _failed_writes(server)


def _append_only(server: ServerFacts) -> Iterator[Finding]:
    match server.setting("appendfsync"):
        case "always":
            yield Finding(
                _FINE, "persistence", "append-only file, synced before the answer: survives a power cut"
            )
        case "everysec":
            yield Finding(
                _FINE,
                "persistence",
                "append-only file, synced every second: survives a crash of Redis; a power cut may lose the "
                "last two seconds",
            )
        case "no":
            yield Finding(
                _WARNING,
                "persistence",
                "the append-only file is never synced by Redis (appendfsync no): a power cut may lose the "
                "last 30 seconds",
                "CONFIG SET appendfsync everysec, or always",
            )
        case _:
            yield Finding(
                _FINE, "persistence", "append-only file; its sync interval is unknown (CONFIG is forbidden)"
            )
    if server.setting("no-appendfsync-on-rewrite") == "yes":
        yield Finding(
            _WARNING,
            "persistence",
            "nothing is synced while Redis rewrites its files (no-appendfsync-on-rewrite yes): a power cut "
            "then loses all jobs since the rewrite began",
            "CONFIG SET no-appendfsync-on-rewrite no",
        )


def _failed_writes(server: ServerFacts) -> Iterator[Finding]:
    way_out = "look at the server's disk (full? permissions?) and its log"
    if server.number("aof_enabled") and server.fact("aof_last_write_status") == "err":
        yield Finding(_ERROR, "persistence", "the last write to the append-only file has failed", way_out)
    if server.number("aof_enabled") and server.fact("aof_last_bgrewrite_status") == "err":
        yield Finding(_WARNING, "persistence", "the last rewrite of the append-only file has failed", way_out)
    if server.fact("rdb_last_bgsave_status") != "err":
        return
    if server.setting("stop-writes-on-bgsave-error") == "no":
        level = _WARNING if server.number("aof_enabled") else _ERROR
        yield Finding(
            level, "persistence", "the last snapshot has failed, and the previous one is getting old", way_out
        )
    else:
        yield Finding(
            _ERROR, "persistence", "the last snapshot has failed: Redis may refuse new jobs", way_out
        )


# ── replicas ──


def replicas(server: ServerFacts) -> Iterator[Finding]:
    if server.is_replica:
        return
    attached, online, wanted = (
        server.number("connected_slaves"),
        server.online_replicas(),
        server.wait_replicas,
    )
    if wanted > online:
        yield Finding(
            _ERROR,
            "replicas",
            f"wait_replicas={wanted}, and {online} are online: every enqueue ends in NotReplicated",
            "bring the replicas back, or lower wait_replicas",
        )
    if not attached:
        if server.mode != "single":
            yield Finding(
                _WARNING,
                "replicas",
                "there is no replica: no server can take over from this master",
                "attach one",
            )
        return
    yield from _cut_off(server, online)
    if wanted == 0:
        yield Finding(
            _FINE,
            "replicas",
            f"{online} of {attached} online. Replication is asynchronous: a failover may lose the last jobs, "
            "unless the URL has wait_replicas=1",
        )
    else:
        yield Finding(_FINE, "replicas", f"{online} of {attached} online; an enqueue waits for {wanted}")


def _cut_off(server: ServerFacts, online: int) -> Iterator[Finding]:
    """Check for a master without replicas, which may have been replaced without noticing it."""
    least, lag = server.setting("min-replicas-to-write"), server.setting("min-replicas-max-lag")
    if least is None:
        return
    if least == "0" or lag == "0":
        yield Finding(
            _WARNING,
            "replicas",
            "min-replicas-to-write is off: a master that is cut off still accepts jobs, which are lost "
            "when another server has taken its place",
            "CONFIG SET min-replicas-to-write 1, and min-replicas-max-lag 10",
        )
    elif int(least) > online:
        yield Finding(
            _ERROR,
            "replicas",
            f"min-replicas-to-write is {least}, and {online} are online: new jobs are refused",
            "bring the replicas back",
        )
