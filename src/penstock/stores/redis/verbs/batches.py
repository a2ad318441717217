"""What operators ask of groups: which there are, and that one becomes a batch now."""

from __future__ import annotations

from typing import Any

from penstock.stores.contract import GroupInfo
from penstock.stores.redis.context import AWAY, Ground, Talk, any_of, isolated, sure
from penstock.stores.redis.keys import id_of
from penstock.stores.redis.verbs.producing import highest, known

__all__ = ["flush_group", "groups"]


@isolated
def groups(ground: Ground, queue: str | None, limit: int) -> Talk[list[GroupInfo]]:
    names = (yield from known(ground)) if queue is None else [queue]
    calls = [(name, ground.call("groups", [name], [limit])) for name in names]
    answers = (yield from any_of(ground, calls)) if names else []
    found = [
        one
        for name, answer in zip(names, answers, strict=True)
        if answer is not AWAY
        for one in _groups_of(name, answer)
    ]
    return sorted(found, key=GroupInfo.order)[: max(0, limit)]


def _groups_of(queue: str, answer: list[Any]) -> list[GroupInfo]:
    found: list[GroupInfo] = []
    for i in range(0, len(answer), 4):
        name, size, oldest, due = answer[i : i + 4]
        task, _, key = name.decode().partition("\0")
        found.append(GroupInfo(queue, task, key, size, int(oldest), int(due) if due else None))
    return found


def flush_group(ground: Ground, queue: str, task: str, key: str) -> Talk[str | None]:
    if ground.clustered and ground.steered:
        yield from highest(ground)
    call = ground.call("flush_group", [queue], [ground.floor, f"{task}\0{key}"], repeatable=False)
    ((newest, made),) = sure((yield [call]))
    ground.floor = max(ground.floor, int(newest))
    return None if made is None else id_of(made)
