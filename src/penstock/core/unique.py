"""When two jobs are the same, for how long, and what becomes of the second.

A `Unique` is a rule as a user writes it; applied to one job it is a `UniqueKey`, which travels with the job.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, Literal, get_args

import msgspec

from penstock.core.duration import Duration, milliseconds
from penstock.core.errors import ConfigError, did_you_mean
from penstock.core.text import plain, shown

__all__ = [
    "ALL_STATES",
    "WHILE_FINISHED",
    "WHILE_QUEUED",
    "WHILE_RUNNING",
    "KeyFunction",
    "OnConflict",
    "Replaceable",
    "Unique",
    "UniqueKey",
    "UniqueState",
    "key_digest",
]

UniqueState = Literal["queued", "running", "finished"]
OnConflict = Literal["existing", "reject", "replace"]
Replaceable = Literal["arguments", "run_at"]
#: (arguments of the call that it names) → what the calls that are the same have in common.
KeyFunction = Callable[..., str | int]

#: The states in which a job holds its key, as bits of `UniqueKey.states`.
WHILE_QUEUED, WHILE_RUNNING, WHILE_FINISHED = 1, 2, 4
ALL_STATES = WHILE_QUEUED | WHILE_RUNNING | WHILE_FINISHED
_STATES: tuple[str, ...] = get_args(UniqueState)
_REPLACEABLE: tuple[str, ...] = get_args(Replaceable)
_CONFLICTS: tuple[str, ...] = get_args(OnConflict)
_MOST = 10_000


class UniqueKey(msgspec.Struct, frozen=True, array_like=True):
    """The rule applied to one job: who else has this key, in this queue, is the same.

    `period` is ms from the enqueue; `states` and `replace` are bits. Whoever replaces is of the same task.
    """

    key: str
    period: int | None = None
    states: int = WHILE_QUEUED | WHILE_RUNNING
    replace: int = 0
    reject: bool = False

    @property
    def replaces_arguments(self) -> bool:
        return bool(self.replace & 1)

    @property
    def replaces_run_at(self) -> bool:
        return bool(self.replace & 2)

    @property
    def held_in(self) -> tuple[str, ...]:
        """The states in words."""
        return tuple(word for bit, word in enumerate(_STATES) if self.states >> bit & 1)


class Unique(msgspec.Struct, frozen=True, kw_only=True):
    """At most one job of a key in its queue: which calls share a key, how long a job holds it, what a second
    call does. Raises ConfigError for what makes no sense.

    The same are jobs of one task with equal arguments; with `by=` those arguments alone count, with `key=` a
    text, or a function of the arguments that it names.

    A job holds its key in these `states` (queued: everything before it starts, and between its attempts;
    finished: completed, as long as it is kept), with a `period` at most so long after its enqueue. With
    "finished" and a period the key is held to the period's end, also if the completed job is not kept. A job
    that is dead, cancelled or deleted holds nothing.

    `on_conflict`: "existing" gives the handle of the job that holds the key, "reject" raises DuplicateJob,
    "replace" gives that job, if it is queued, the new `arguments`, the new `run_at`, or both.
    """

    by: str | Sequence[str] | None = None
    key: str | KeyFunction | None = None
    states: UniqueState | Sequence[UniqueState] = ("queued", "running")
    period: Duration | None = None
    on_conflict: OnConflict | None = None
    replace: Replaceable | Sequence[Replaceable] = ()

    def __post_init__(self) -> None:
        self.terms()
        if self.by is not None and self.key is not None:
            raise ConfigError("unique: by= and key= both say which calls are the same: give one of them")
        if self.by is not None and not self.names:
            raise ConfigError("unique: by=() names no argument; leave it out, and all of them count")
        if isinstance(self.key, str):
            _check_text(self.key, "unique: key=")
        elif self.key is not None and (not callable(self.key) or inspect.iscoroutinefunction(self.key)):
            raise ConfigError(f"unique: key={self.key!r:.100} is neither a text nor a plain function")

    @classmethod
    def of(cls, value: bool | Duration | Unique | None) -> Unique | None:
        """What a user may write: True, a period, a Unique, or nothing."""
        if value is None or value is False:
            return None
        if isinstance(value, Unique):
            return value
        return cls() if value is True else cls(period=value)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The arguments that count; None: all."""
        return None if self.by is None else _words(self.by, None, "by", "an argument's name")

    def check(self, signature: inspect.Signature | None) -> None:
        """Raise ConfigError if the rule names arguments that a function of this signature does not have.

        None: there are no named ones.
        """
        if signature is None:
            if self.by is not None or callable(self.key):
                raise ConfigError(
                    "unique: a raw job has no named arguments for by= or a key function: "
                    "its payload as a whole counts; say the key of a call with unique_key="
                )
            return
        known = list(signature.parameters)
        what = "by=" if self.by is not None else "the key function's parameter "
        for name in self.names or self.asks(signature):
            if name not in known:
                near = did_you_mean(name, known) or f"; it has {', '.join(known) or 'none'}"
                raise ConfigError(f"unique: {what}{name!r} is no argument of the task{near}")

    def asks(self, signature: inspect.Signature) -> tuple[str, ...]:
        """The arguments that a key function wants to see, which it names, or with `**rest` all."""
        if not callable(self.key):
            return ()
        try:
            parameters = inspect.signature(self.key).parameters.values()
        except (TypeError, ValueError):  # a builtin without a signature gets the first
            return tuple(signature.parameters)[:1]
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            return tuple(signature.parameters)
        return tuple(p.name for p in parameters if p.kind is not p.VAR_POSITIONAL)

    def with_key(self, key: str) -> Unique:
        """The same rule for calls that say themselves what their key is."""
        return msgspec.structs.replace(self, by=None, key=_check_text(key, "unique_key="))

    def terms(self) -> UniqueKey:
        """All but the key."""
        period = None if self.period is None else milliseconds(self.period, what="unique")
        if period == 0:
            raise ConfigError("unique=0 would hold for no time; use True, a longer period, or False")
        states = _words(self.states, _STATES, "states", "a state of holding")
        if not states:
            raise ConfigError(f"unique: states=() would hold in no state; name some of {', '.join(_STATES)}")
        replace = _words(self.replace, _REPLACEABLE, "replace", "something to replace")
        conflict = self.on_conflict or ("replace" if replace else "existing")
        if conflict not in _CONFLICTS:
            near = did_you_mean(str(conflict), _CONFLICTS) or f"; it is one of {', '.join(_CONFLICTS)}"
            raise ConfigError(f"unique: on_conflict={conflict!r} is unknown{near}")
        if replace and conflict != "replace":
            raise ConfigError(f"unique: replace= goes with on_conflict='replace', not {conflict!r}")
        if conflict == "replace":
            if "queued" not in states:
                raise ConfigError(
                    "unique: only a queued job can be replaced, and with these states= none holds its key: "
                    "add 'queued', or take another on_conflict="
                )
            replace = replace or _REPLACEABLE
        return UniqueKey(
            "", period, _bits(states, _STATES), _bits(replace, _REPLACEABLE), conflict == "reject"
        )


def key_digest(task: str, how: str, what: bytes) -> str:
    """A key: 128 bits over the task's name, and what its calls have in common, found in this way."""
    text = b"\0".join((task.encode(), how.encode(), what))
    return blake2b(text, digest_size=16).hexdigest()


def _check_text(key: Any, what: str) -> str:
    text = plain(key) if isinstance(key, str) else ""
    if not 1 <= len(text) <= _MOST:
        raise ConfigError(f"{what}{shown(key)} is not a text of 1 to {_MOST:,} characters")
    return text


def _words(value: Any, known: Sequence[str] | None, what: str, kind: str) -> tuple[str, ...]:
    """One word, or several; each once."""
    words = (value,) if isinstance(value, str) else value
    if not isinstance(words, (Sequence, set, frozenset)):
        raise ConfigError(f"unique: {what}={value!r:.100} is not a list of words")
    for word in words:
        if not isinstance(word, str) or (known is not None and word not in known):
            near = did_you_mean(str(word), known or ()) or (
                f"; known are {', '.join(known)}" if known else ""
            )
            raise ConfigError(f"unique: {what}={word!r:.100} is not {kind}{near}")
    return tuple(dict.fromkeys(words))


def _bits(words: Iterable[str], known: Sequence[str]) -> int:
    return sum(1 << known.index(word) for word in words)
