"""Security facts for all packages: marks of secret fields, rights, redaction of values, loopback addresses.

A mark of a field says that an encrypted store encrypts its content, or keeps it from the store inside, as
in `payload: Annotated[bytes, Secret.PAYLOAD]`. msgspec ignores the mark: it changes neither what is stored
nor how fast it is read. `tests/encryption/test_marks.py` fails for a field of text or bytes that is neither
marked nor listed there as clear.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Sequence

import msgspec


class Secret(enum.Enum):
    """What a marked field holds, and so how it is encrypted: `stores/encrypted/` has the rules."""

    PAYLOAD = "payload"  # arguments of a job, of a periodic entry or of a batch's members
    RESULT = "result"
    CHECKPOINT = "checkpoint"
    REASON = "reason"  # clear only if known to quote nothing: `_OWN_WORDS` of the field cipher
    ERROR = "error"  # message and traceback of an attempt's error
    NOTE = "note"  # of progress
    UNIQUE_KEY = "unique key"  # hashed, so that equal keys stay equal; the hash is what comes back
    STEP = "step"  # value of a durable step
    SIGNAL = "signal"  # data of a signal; as a step's value, too
    DOCUMENT = "document"
    LOG = "log"  # an entry of a log
    ERROR_GROUP = "error group"  # message of a group of errors
    ERROR_GROUP_NAME = "error group name"  # hashed, as a unique key
    SEARCH = "search"  # a text to look for, which stays outside: only clear jobs contain it


class Right(enum.StrEnum):
    """What a token may do with queues."""

    PRODUCE = "produce"  # enqueue jobs
    CONSUME = "consume"  # take jobs, and settle them
    READ = "read"  # see jobs and sizes
    OPERATE = "operate"  # remove, retry, change and stop what others have enqueued
    ADMIN = "admin"  # everything, and tokens, limits and workers besides

    __hash__ = str.__hash__


#: The rights that a right includes.
INCLUDED_RIGHTS = {
    Right.OPERATE: frozenset({Right.OPERATE, Right.READ}),
    Right.ADMIN: frozenset(Right),
}


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server at this address."""
    if host == "localhost":
        return True
    import ipaddress  # each process with jobs imports this module, and few look at addresses

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# ── values that are hidden from viewers, by their names ──────────────────────────────────────────


HIDDEN = "hidden"
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:,]|[^\s"{}\[\]:,]+', re.DOTALL)


class Redaction:
    """Which names have values that are not shown. `patterns`: lower case, `*` stands for any characters."""

    def __init__(self, patterns: Sequence[str]) -> None:
        from fnmatch import translate  # as above: few hide values

        self.patterns = tuple(pattern.lower() for pattern in patterns)
        wanted = "|".join(translate(pattern) for pattern in self.patterns)
        self._matches = re.compile(wanted or r"(?!)").match

    def hides(self, name: str) -> bool:
        """Whether the value of this name is hidden."""
        return self._matches(name.lower()) is not None

    def apply(self, values: dict[str, str]) -> dict[str, str]:
        """A flat object with hidden values replaced."""
        return {name: HIDDEN if self.hides(name) else value for name, value in values.items()}

    def visible_parts(self, raw: bytes) -> list[bytes]:
        """The bytes of a JSON document between its hidden values; none if it is not JSON in UTF-8.

        Without a placeholder: a text that matched one would show what is hidden, e.g. that it is null.
        """
        try:
            msgspec.json.decode(raw)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return []
        parts, begin, before = [], 0, b""
        tokens = _TOKEN.finditer(raw)
        for token in tokens:
            if token[0] == b":" and self.hides(msgspec.json.decode(before, type=str)):
                parts.append(raw[begin : token.end()])
                begin = _end_of_value(tokens)
            before = token[0]
        return [*parts, raw[begin:]]


def _end_of_value(tokens: Iterator[re.Match[bytes]]) -> int:
    depth, end = 0, 0
    for token in tokens:
        depth += (token[0] in (b"{", b"[")) - (token[0] in (b"}", b"]"))
        end = token.end()
        if depth == 0:
            break
    return end
