"""Access tokens: what a token allows, for how long and how often, and the secret that proves it.

Only a hash of the secret is stored, so that nobody who reads the store can use a token.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

import msgspec

from penstock.core.errors import ConfigError, did_you_mean
from penstock.core.formats import instant, iso
from penstock.core.limits import Rate
from penstock.core.security import INCLUDED_RIGHTS, Right
from penstock.web.text_cache import TextCache

__all__ = [
    "AccessToken",
    "Right",
    "TokenScope",
    "check_request_rate",
    "check_scopes",
    "check_token_name",
    "digest_of",
    "looks_native",
    "new_secret",
]

_PREFIX = "pst_"
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
#: 238 random bits.
_LENGTH = 40
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_PATTERN = re.compile(r"[A-Za-z0-9._:@+=~*-]{1,255}", re.ASCII)
_MOST_SCOPES = 100


class TokenScope(msgspec.Struct, frozen=True):
    """Rights on queues. `queues` are names, in which `*` stands for any characters."""

    rights: tuple[Right, ...]
    queues: tuple[str, ...] = ("*",)

    @classmethod
    def of(cls, text: str) -> TokenScope:
        """Read a scope: `produce`, `produce,consume:mail.*,orders`. Raises ConfigError."""
        given, colon, names = text.partition(":")
        rights = [_right(word.strip(), text) for word in given.split(",")]
        queues = [name.strip() for name in names.split(",")] if colon else ["*"]
        for name in queues:
            if _PATTERN.fullmatch(name) is None:
                raise ConfigError(f"scope={text!r}: {name!r} is neither the name of a queue nor a pattern")
        return cls(tuple(dict.fromkeys(rights)), tuple(dict.fromkeys(queues)))

    def __str__(self) -> str:
        """The scope as `of` reads it."""
        rights = ",".join(self.rights)
        return rights if self.queues == ("*",) else f"{rights}:{','.join(self.queues)}"

    def gives(self, right: Right) -> bool:
        """Whether the scope has this right, on the queues that it names."""
        return any(right in INCLUDED_RIGHTS.get(one, (one,)) for one in self.rights)

    def covers(self, queue: str) -> bool:
        """Whether the scope is about this queue; `*` stands for all queues."""
        return any(fnmatchcase(queue, pattern) for pattern in self.queues)


class AccessToken(msgspec.Struct, frozen=True):
    """A token as it is stored. Instants are in ms since the epoch by the store's clock.

    - `name`: unique in the store; shown in lists, logs and the audit log in the place of the token.
    - `digest`: the hash of the secret.
    - `rate`: how many requests per time are answered, at all servers together.
    """

    name: str
    digest: str
    scopes: tuple[TokenScope, ...]
    created_at: int
    expires_at: int | None = None
    rate: Rate | None = None
    description: str = ""

    def allows(self, right: Right, queues: Collection[str]) -> bool:
        """Whether the token has this right on each of these queues; `*` stands for all queues."""
        return _allowed[self.scopes, right, tuple(queues)]

    def expired(self, now: int) -> bool:
        """Whether the token's time is over."""
        return self.expires_at is not None and self.expires_at <= now

    def to_dict(self, now: int) -> dict[str, object]:
        """The token as a dict for JSON, without its hash."""
        return {
            "name": self.name,
            "scopes": [{"rights": list(one.rights), "queues": list(one.queues)} for one in self.scopes],
            "rate": None if self.rate is None else str(self.rate),
            "created_at": instant(self.created_at),
            "expires_at": iso(self.expires_at),
            "expired": self.expired(now),
            "description": self.description,
        }


def _allows(asked: tuple[tuple[TokenScope, ...], Right, tuple[str, ...]]) -> bool:
    scopes, right, queues = asked
    matching = [scope for scope in scopes if scope.gives(right)]
    return bool(matching) and all(any(scope.covers(queue) for scope in matching) for queue in queues)


_allowed = TextCache(_allows)


def new_secret() -> str:
    """A new token, as its user sends it."""
    return _PREFIX + "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))


def looks_native(text: str) -> bool:
    """Whether a text may be a token of ours."""
    return text.startswith(_PREFIX) and len(text) == len(_PREFIX) + _LENGTH


def digest_of(secret: str) -> str:
    """The hash of a token. A fast one is enough, because nobody can guess 238 random bits."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def check_token_name(name: str) -> str:
    """Return the name of a token if it is valid. Raises ConfigError."""
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f"name={name[:100]!r}: use 1 to 64 of the characters A-Z a-z 0-9 . _ -")
    return name


def check_scopes(scopes: Iterable[TokenScope]) -> tuple[TokenScope, ...]:
    """Return the scopes if a token may have them. Raises ConfigError."""
    found = tuple(dict.fromkeys(scopes))
    if not 1 <= len(found) <= _MOST_SCOPES:
        raise ConfigError(f"a token has 1 to {_MOST_SCOPES} scopes")
    return found


def check_request_rate(text: str) -> Rate:
    """Read the rate of a token: a whole number of requests per time. Raises ConfigError."""
    rate = Rate.of(text)
    if rate.count != int(rate.count):
        raise ConfigError(f"rate={text!r}: give a whole number of requests, e.g. '1/2s' for '0.5/s'")
    return rate


def _right(word: str, text: str) -> Right:
    try:
        return Right(word)
    except ValueError:
        known = [right.value for right in Right]
        hint = did_you_mean(word, known) or f"; the rights are {', '.join(known)}"
        raise ConfigError(f"scope={text!r}: there is no right {word!r}{hint}") from None
