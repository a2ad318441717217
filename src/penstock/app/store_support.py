"""Refuses what an app has registered and its store cannot honour, before the first job is enqueued."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from penstock.app.task import Handler, Task
from penstock.client.job_call import Template
from penstock.core.errors import Unsupported
from penstock.core.limits import LimitChange
from penstock.core.schedule import NewEntry
from penstock.stores.contract import Capability, Store, options_beyond

_ALL = frozenset(Capability)


def check_support(
    store: Store | None,
    tasks: Iterable[Task[..., Any]] = (),
    handlers: Iterable[Handler] = (),
    entries: Iterable[NewEntry] = (),
    queues: Mapping[str, LimitChange] | None = None,
) -> None:
    """Raise Unsupported with a list of all options that the store lacks. None: the store is not known yet."""
    if store is None or store.capabilities >= _ALL:
        return
    lacks = [
        f"{option.name} of {who} (it cannot {option.needs.value})"
        for who, value in _values(tasks, handlers, entries, queues or {})
        for option in options_beyond(value, store.capabilities)
    ]
    if lacks:
        raise Unsupported(
            f"{store.url} does not support {', '.join(lacks)}: leave that out, or use a store that does"
        )


def _values(
    tasks: Iterable[Task[..., Any]],
    handlers: Iterable[Handler],
    entries: Iterable[NewEntry],
    queues: Mapping[str, LimitChange],
) -> Iterator[tuple[str, Any]]:
    """The name of each owner of options, and the value with the options."""
    for task in tasks:
        yield f"the task {task.name!r}", task._template.sample
    for handler in handlers:
        options = Template("", handler.options, handler.result).sample
        yield f"the handler of the queue {handler.queue!r}", options
    for entry in entries:
        yield f"the periodic entry {entry.name!r}", entry
    for name, change in queues.items():
        yield f"the queue {name!r}", change
