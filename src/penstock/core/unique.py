"""Unique jobs: when two jobs count as the same, for how long, and what happens to the second.

A `Unique` is a rule as a user writes it. Applied to one job it is a `UniqueKey`, which is stored with the
job.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Annotated, Any, Literal, get_args

import msgspec

from penstock.core.errors import ConfigError, did_you_mean
from penstock.core.formats import Duration, milliseconds
from penstock.core.lazy import returned_by
from penstock.core.security import Secret
from penstock.core.text import plain, shown

UniqueState = Literal["queued", "running", "finished"]
OnConflict = Literal["existing", "reject", "replace"]
Replaceable = Literal["arguments", "run_at"]
#: Called with the arguments that it names; calls with equal return values are the same.
KeyFunction = Callable[..., str | int]

#: The phases in which a job holds its unique key, as bits of `UniqueKey.phases`; users call them states.
#: `changes.phase` has the phase of each state of a job.
QUEUED_PHASE, RUNNING_PHASE, FINISHED_PHASE = 1, 2, 4
ALL_PHASES = QUEUED_PHASE | RUNNING_PHASE | FINISHED_PHASE
#: What a second job replaces, as bits of `UniqueKey.replace`.
REPLACES_ARGUMENTS, REPLACES_RUN_AT = 1, 2
_STATES: tuple[str, ...] = get_args(UniqueState)
_REPLACEABLE: tuple[str, ...] = get_args(Replaceable)
_CONFLICTS: tuple[str, ...] = get_args(OnConflict)
_MAX_KEY = 10_000


class UniqueKey(msgspec.Struct, frozen=True, array_like=True):
    """A unique rule applied to one job: another job with this key in the same queue is a duplicate.

    `period` is in ms from the enqueue; `phases` and `replace` are bits. Only a job of the same task can
    replace.
    """

    key: Annotated[str, Secret.UNIQUE_KEY]
    period: int | None = None
    phases: int = QUEUED_PHASE | RUNNING_PHASE
    replace: int = 0
    reject: bool = False

    @property
    def replaces_arguments(self) -> bool:
        return bool(self.replace & REPLACES_ARGUMENTS)

    @property
    def replaces_run_at(self) -> bool:
        return bool(self.replace & REPLACES_RUN_AT)

    @property
    def held_in(self) -> tuple[str, ...]:
        """The phases as words."""
        return tuple(word for bit, word in enumerate(_STATES) if self.phases >> bit & 1)


class Unique(msgspec.Struct, frozen=True, kw_only=True):
    """A rule for at most one job per unique key in a queue. Raises ConfigError for an invalid rule.

    Which calls share a key: those of one task with equal arguments. `by=` compares only the named arguments;
    `key=` is the key itself, or a function of the arguments that it names.

    How long a job holds its key: in these `states`, and with a `period` at most that long after its enqueue.
    "queued" covers the time before the start and between attempts; "finished" means completed, while the job
    is kept. With "finished" and a period the key is held to the end of the period, even if the completed job
    is not kept. A dead, cancelled or deleted job holds no key.

    What a second call does (`on_conflict`): "existing" returns the handle of the job that holds the key,
    "reject" raises DuplicateJob, "replace" gives that job, if it is queued, the new `arguments`, the new
    `run_at`, or both.
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
            raise ConfigError("unique: by= and key= both define which calls are the same: give one of them")
        if self.by is not None and not self.names:
            raise ConfigError("unique: by=() names no argument; leave it out to compare all of them")
        if isinstance(self.key, str):
            _check_text(self.key, "unique: key=")
        elif self.key is not None and (not callable(self.key) or returned_by(self.key)):
            raise ConfigError(f"unique: key={self.key!r:.100} is neither a text nor a plain function")

    @classmethod
    def of(cls, value: bool | Duration | Unique | None) -> Unique | None:
        """Read a user's value: True, a period, a Unique, False or None."""
        if value is None or value is False:
            return None
        if isinstance(value, Unique):
            return value
        return cls() if value is True else cls(period=value)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The arguments that are compared; None: all."""
        return None if self.by is None else _words(self.by, None, "by", "an argument's name")

    def check(self, signature: inspect.Signature | None) -> None:
        """Raise ConfigError if the rule names arguments that a function of this signature does not have.

        `signature` is None for raw jobs, which have no named arguments.
        """
        if signature is None:
            if self.by is not None or callable(self.key):
                raise ConfigError(
                    "unique: a raw job has no named arguments for by= or a key function: "
                    "its whole payload is compared; set the key of a call with unique_key="
                )
            return
        known = list(signature.parameters)
        what = "by=" if self.by is not None else "the key function's parameter "
        for name in self.names or self.key_arguments(signature):
            if name not in known:
                near = did_you_mean(name, known) or f"; it has {', '.join(known) or 'none'}"
                raise ConfigError(f"unique: {what}{name!r} is not an argument of the task{near}")

    def key_arguments(self, signature: inspect.Signature) -> tuple[str, ...]:
        """The names of the arguments that the key function takes; all of them with `**rest`."""
        if not callable(self.key):
            return ()
        try:
            parameters = inspect.signature(self.key).parameters.values()
        except (TypeError, ValueError):  # a builtin without a signature gets the first argument
            return tuple(signature.parameters)[:1]
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            return tuple(signature.parameters)
        return tuple(p.name for p in parameters if p.kind is not p.VAR_POSITIONAL)

    def with_key(self, unique_key: str) -> Unique:
        """The same rule with this key, for a call with `unique_key=`."""
        return msgspec.structs.replace(self, by=None, key=_check_text(unique_key, "unique_key="))

    def terms(self) -> UniqueKey:
        """The checked rule as a UniqueKey without its key."""
        period = None if self.period is None else milliseconds(self.period, what="unique")
        if period == 0:
            raise ConfigError("unique=0 would never be in effect; use True, a longer period, or False")
        states = _words(self.states, _STATES, "states", "a state of holding")
        if not states:
            raise ConfigError(f"unique: states=() names no state; name some of {', '.join(_STATES)}")
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
                    "unique: only a queued job can be replaced, and with these states= it holds no key: "
                    "add 'queued', or take another on_conflict="
                )
            replace = replace or _REPLACEABLE
        return UniqueKey(
            "", period, _bits(states, _STATES), _bits(replace, _REPLACEABLE), conflict == "reject"
        )


def key_digest(task: str, how: str, what: bytes) -> str:
    """A unique key: a 128-bit hash of the task's name, the kind of comparison, and the compared value."""
    text = b"\0".join((task.encode(), how.encode(), what))
    return blake2b(text, digest_size=16).hexdigest()


def _check_text(key: Any, what: str) -> str:
    text = plain(key) if isinstance(key, str) else ""
    if not 1 <= len(text) <= _MAX_KEY:
        raise ConfigError(f"{what}{shown(key)} is not a text of 1 to {_MAX_KEY:,} characters")
    return text


def _words(value: Any, known: Sequence[str] | None, what: str, kind: str) -> tuple[str, ...]:
    """Read one word or several, without duplicates."""
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
