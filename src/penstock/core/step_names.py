"""The names under which a flow stores its operations, and what stands before a stored value.

    !KIND/[SCOPE/…]NAME[=KEY][#N][!SUFFIX]

A name is the *identity* of an operation: its kind, name, key and number of use, in a scope (a branch, or an
item of a loop). Computed values are no part of it.

Outside of this scheme:

- VERSION, and the two marks of undoing: STEP_FAILED of `app/deciding.py`, STEP_UNDO of the contract.
- The job's log: `log!` and the place of its lines (`stores/job_log.py`).
- The names of a flow that an older release began: those of steps are bare, as in `charge#2`; for other
  operations the kind stands in front of a "!", as in `sleep!`, `wait!packed`, `gather!#2`. Such a flow
  keeps its names, and their numbering, to its end (docs/concepts/steps.md).
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, NamedTuple

import msgspec

from penstock.core.errors import ConfigError, FlowError
from penstock.core.text import shown, text_of

#: The step with the version of the code that began the flow.
VERSION = "!version"
#: A longer name (bytes) has a digest in place of its scope and key: suffixes fit behind it.
_LONGEST = 440
#: A longer cursor has a digest in its use.
_LONGEST_CURSOR = 40
#: What the names that a user gives must not contain.
_RESERVED = "!#"
_MARKS = "%/=#![]\x7f" + "".join(map(chr, range(32)))
_ESCAPED = str.maketrans({mark: f"%{ord(mark):02X}" for mark in _MARKS})
_ESCAPE = re.compile("%([0-9A-F]{2})")
_NAME = re.compile(r"!([a-z]+)/(?:(.*)/)?([^/=#!]*)(?:=([^/=#!]*))?(?:#(\d+))?(?:!(.*))?")


def checked_name(name: Any, what: str) -> str:
    """The name of a step or signal. Raises ConfigError."""
    if not isinstance(name, str) or not 1 <= len(name.encode("utf-8", "replace")) <= 200:
        raise ConfigError(f"{what} has 1 to 200 bytes of text, not {name!r:.100}")
    if any(mark in name for mark in _RESERVED):
        raise ConfigError(f"{what} {name!r} must not contain '!' or '#'")
    return name


class Identity(NamedTuple):
    """What the code gives of the identity of an operation.

    `older`: the name by which flows that an older release began count its uses.
    """

    kind: str
    name: str
    key: str | None
    older: str

    @property
    def part(self) -> str:
        """Its name and key as a part of a stored name."""
        name = self.name.translate(_ESCAPED)
        return name if self.key is None else f"{name}={self.key.translate(_ESCAPED)}"

    def within(self, scope: str) -> str:
        """Its identity in a scope, whose parts each end in "/"; a number of use may follow."""
        text = f"!{self.kind}/{scope}{self.part}"
        if len(text.encode()) <= _LONGEST:
            return text
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        return f"!{self.kind}/~{digest}/{self.name[:40].translate(_ESCAPED)}"

    def __str__(self) -> str:
        name = f"{self.kind} {self.name!r}" if self.name else self.kind
        return name if self.key is None else f"{name} with the key {self.key!r}"


class StepName(NamedTuple):
    """A stored name of the current numbering, in parts.

    `scope`: branches and items of loops around it, the outermost first. `suffix`: of a helper record, as in
    "failed"; "" for the operation itself.
    """

    kind: str
    scope: tuple[str, ...]
    name: str
    key: str | None = None
    use: int = 1
    suffix: str = ""

    @property
    def shown(self) -> str:
        """For people: `charge`, `charge=7`, `charge#2`, `a/charge`."""
        key, use = "" if self.key is None else f"={self.key}", "" if self.use == 1 else f"#{self.use}"
        return "/".join([*self.scope, f"{self.name}{key}{use}"])


def parsed(name: str) -> StepName | None:
    """The parts of a stored name; None for one outside of the scheme (see the head of this page)."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    kind, scope, own, key, use, suffix = found.groups()
    parts = tuple(_unescaped(part) for part in scope.split("/")) if scope else ()
    own_key = None if key is None else _unescaped(key)
    return StepName(kind, parts, _unescaped(own), own_key, int(use or 1), suffix or "")


def numbered(text: str, use: int) -> str:
    """A name, or a part of a scope, with the number of its use."""
    return text if use == 1 else f"{text}#{use}"


#: What an encoder of JSON raises for a value that it cannot encode: it would do so again.
UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError)


def no_cursor(loop: str, cursor: Any, error: Exception) -> FlowError:
    """The error for a cursor of a loop that cannot be encoded."""
    what = f"the cursor of {loop!r}, {shown(cursor)}, cannot be remembered"
    return FlowError(f"{what}: {text_of(error)}. A cursor is any JSON value")


def item_part(loop: str, cursor: Any) -> str:
    """The part of a scope that is the item of a loop: `loop` is the loop's own part."""
    try:
        text = msgspec.json.encode(cursor).decode()
    except UNENCODABLE as error:
        raise no_cursor(loop, cursor, error) from None
    if len(text) > _LONGEST_CURSOR:
        text = "~" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return f"{loop}[{text.translate(_ESCAPED)}]"


def with_head(head: str, value: bytes) -> bytes:
    """A value as it is stored: behind a line that says what was asked for."""
    return b"%b\n%b" % (head.encode(), value)


def split_value(stored: bytes) -> tuple[str, bytes]:
    """The line before a stored value, and the value."""
    head, _, value = stored.partition(b"\n")
    return head.decode(errors="replace"), value


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
