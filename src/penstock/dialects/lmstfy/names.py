"""Names of namespaces and queues, and the store's queue that stands for both."""

from __future__ import annotations

import functools
import hashlib
import re

__all__ = ["MOST_NAME", "is_name", "is_ours", "is_queue_list", "is_utf8", "split_queue", "store_queue"]

#: Maximum length of the name of a namespace and of a queue.
MOST_NAME = 255
#: Maximum length of the name of a queue in a store. A longer one is shortened, with a hash of the whole name.
_MOST_STORED = 255
_HASH = 40
_PART = (_MOST_STORED - _HASH - 2) // 2
_NAME = re.compile(r"[-_A-Za-z0-9]+")
_SURROGATE = re.compile("[\ud800-\udfff]")
_LIST = re.compile(r"[-_A-Za-z0-9,]+")


def is_name(text: str) -> bool:
    """Whether lmstfy allows this as a namespace; a queue must not begin with "_" besides."""
    return _NAME.fullmatch(text) is not None


def is_queue_list(text: str) -> bool:
    """Whether lmstfy allows this as the list of queues of a consume request."""
    return _LIST.fullmatch(text) is not None


def is_utf8(text: str) -> bool:
    """Whether the bytes of a path's part were UTF-8; others are surrogates in its text."""
    return text.isascii() or _SURROGATE.search(text) is None


@functools.lru_cache(maxsize=4_096)
def store_queue(namespace: str, queue: str) -> str:
    """The store's queue for a namespace and a queue: `NAMESPACE.QUEUE`.

    lmstfy's names have no dot, so no request can reach a queue of another namespace, nor a queue of Penstock
    that has no dot in its name.
    """
    name = f"{namespace}.{queue}"
    if len(name) <= _MOST_STORED:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH]
    return f"{namespace[:_PART]}.{queue[:_PART]}~{digest}"


def is_ours(stored: str) -> bool:
    """Whether a queue of the store can be reached by lmstfy's interface."""
    namespace, dot, queue = stored.partition(".")
    shortened = queue.partition("~")[0]
    return bool(dot) and is_name(namespace) and is_name(shortened)


def split_queue(stored: str) -> tuple[str, str] | None:
    """The namespace and queue of a store's queue; None if it is not lmstfy's, or its name was shortened."""
    namespace, dot, queue = stored.partition(".")
    return (namespace, queue) if dot and is_name(namespace) and is_name(queue) else None
