"""Check the settings and the state of Redis servers for risks: lost jobs, or jobs that cannot be stored.

Pure functions from the servers' answers to findings. `INFO` is required. `CONFIG GET` may be forbidden, as by
managed services: then a finding lists the settings that are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from penstock.stores.contract import Finding
from penstock.stores.redis.access_checks import access_of
from penstock.stores.redis.server_checks import findings
from penstock.stores.redis.server_facts import read_config, read_info
from penstock.stores.redis.wire.address import Address
from penstock.stores.redis.wire.calls import Call

__all__ = ["QUESTIONS", "SETTINGS", "examined", "merged"]

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
