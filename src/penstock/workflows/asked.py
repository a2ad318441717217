"""The request line of an operation: what the code asked for, stored in front of the answer.

The line has the name of the function, without its module, and a digest of the arguments. If the line of
a later run differs, the stored answer is that of another request.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from penstock.client.job_call import JobCall
from penstock.codec import canonical_bytes
from penstock.core.text import plain

#: The digest of arguments that cannot be compared.
UNKNOWN = "-"
#: Types whose `repr` says all that a value has.
_PLAIN = frozenset({type(None), bool, int, str})
_LONGEST_NAME = 100


def asked_of(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], changing: bool
) -> str:
    """The line for a call of this function. `changing`: the arguments differ from run to run."""
    given: list[tuple[str, Any]] = [("", one) for one in args]
    given += sorted(kwargs.items())
    while isinstance(function, functools.partial):
        given += [("", one) for one in function.args] + sorted(function.keywords.items())
        function = function.func
    return f"{name_of(function)} {UNKNOWN if changing else _digest(given)}"


def asked_of_jobs(what: str, calls: Sequence[JobCall[Any]], changing: bool) -> str:
    """The line for these jobs: their ids as far as they were given, their tasks and arguments."""
    if changing:
        return f"{what} {UNKNOWN}"
    return f"{what} {_hash(part for call in calls for part in _parts_of(call))}"


def _parts_of(call: JobCall[Any]) -> tuple[bytes, bytes, bytes]:
    template = call.template
    payload = call.payload if template.args is None else template.args.canonical(call.payload)
    return (call.given_id or "").encode(), template.identity.encode(), payload


def name_of(function: Any) -> str:
    """The function's name without its module, and without that of the function in which it is defined."""
    own = getattr(function, "function", function)  # that of a task
    name = getattr(own, "__qualname__", None) or type(own).__qualname__
    return plain(str(name)).rpartition("<locals>.")[2].replace(" ", "_")[:_LONGEST_NAME]


def differ(stored: str, now: str) -> str | None:
    """How the code's request differs from the stored one; None: not in anything that can be compared."""
    (before, digest), (name, other) = stored.rsplit(" ", 1), now.rsplit(" ", 1)
    if before != name:
        return f"it was {before}, and is {name}"
    if digest != other and UNKNOWN not in (digest, other):
        return f"the arguments of {name} were others"
    return None


def _digest(given: Iterable[tuple[str, Any]]) -> str:
    """The digest of arguments by name; UNKNOWN if none of them can be encoded."""
    parts, known, any_given = [], False, False
    for name, value in given:
        any_given = True
        text = _encoded(value)
        known = known or text is not None
        parts += [name.encode(), text or b"?"]
    return _hash(parts) if known or not any_given else UNKNOWN


def _encoded(value: Any) -> bytes | None:
    """Equal bytes for equal values; None for a value that cannot be encoded."""
    if type(value) in _PLAIN:
        return repr(value).encode("utf-8", "backslashreplace")
    try:
        return canonical_bytes(value)
    except Exception:  # noqa: BLE001  # boundary: a user's value may be anything
        return None


def _hash(parts: Iterable[bytes]) -> str:
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        found.update(b"%d:" % len(part))
        found.update(part)
    return found.hexdigest()
