"""Hints for words of other job systems: `eta` is `task.using(run_at=...)` here.

`hint` adds the way out to every message about an unknown option, command or setting, and `no_attribute` to
that about an unknown attribute. The tables have one entry per place, system and word. A wrong hint is worse
than none: tests/unit/test_peer_words.py checks each entry, and that the option it names exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from penstock.core.errors import did_you_mean
from penstock.core.text import short_line

__all__ = ["WordPlace", "hint", "no_attribute", "peer_hint", "tables"]

#: Where a word was used. "option": of a task, a handler or a call. "argument": of a call of a task.
WordPlace = Literal[
    "option",
    "argument",
    "app",
    "periodic",
    "queue",
    "command",
    "command option",
    "setting",
    "Task",
    "App",
    "Handle",
    "Attempt",
    "Job",
]
#: By system and word.
Words = dict[str, dict[str, str]]


def hint(place: WordPlace, word: str, known: Iterable[str]) -> str:
    """The way out for an unknown word: of another system, or a similar known one; "" if there is neither."""
    return peer_hint(place, word) or did_you_mean(word, known)


def peer_hint(place: WordPlace, word: str) -> str:
    """`"; Celery's countdown: use task.using(delay=...)"`, or an empty string."""
    if place in ("app", "periodic"):
        return _peer_hint(place, word) or _peer_hint("option", word)
    return _peer_hint(place, word)


def no_attribute(owner: object, place: WordPlace, name: str) -> AttributeError:
    """The error for an attribute that does not exist, with the way out if another system has it."""
    says = f"{type(owner).__name__!r} object has no attribute {name!r}"
    found = "" if name.startswith("__") else peer_hint(place, name)
    if found:
        return AttributeError(short_line(says + found))
    return AttributeError(says, name=name, obj=owner)  # Python adds a similar name to its message


def tables(place: WordPlace) -> Words:
    """The words of other systems in this place. Imported at the first error."""
    from penstock.core.peer_words import attributes, command_line, options

    return {**options.WORDS, **attributes.WORDS, **command_line.WORDS}[place]


def _peer_hint(place: WordPlace, word: str) -> str:
    systems: dict[str, list[str]] = {}
    for system, words in tables(place).items():
        if word in words:
            systems.setdefault(words[word], []).append(system)
    shown = [f"{_owners(names, word)}{text}" for text, names in systems.items()]
    return f"; {'; '.join(shown)}" if shown else ""


def _owners(systems: list[str], word: str) -> str:
    """`Celery's eta: `; words of Penstock, and those that many systems share, have no system."""
    owners = " and ".join(f"{name}'s" for name in systems if name)
    return f"{owners} {word}: " if owners else ""
