"""What went wrong, said in Penstock's words: error replies, lost connections, connections that never were.

An error reply is read twice: what is to be done next (a `Step`), and what it is called if nothing helps.
"""

from __future__ import annotations

import enum
import re
import socket
import ssl
from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.core.errors import StoreCorrupt, StoreError, StoreFull, StoreUnavailable

__all__ = [
    "ErrorReply",
    "Lost",
    "Meaning",
    "ReplyLost",
    "Step",
    "Unsent",
    "cannot_connect",
    "lost_because",
    "read",
]


class ReplyLost(StoreUnavailable):
    """The call was sent and its answer never came: nobody knows whether it was carried out."""


class ErrorReply(Exception):
    """An error reply, as the server wrote it."""


class Lost(Exception):
    """What was sent may or may not have been carried out; `replies` came before the connection was lost."""

    def __init__(self, why: str, replies: list[Any] | None = None) -> None:
        super().__init__(why)
        self.replies = replies or []


class Unsent(Exception):
    """The connection was found dead before a byte of the call was written."""


class Step(enum.Enum):
    """What an error reply asks for."""

    LOAD = enum.auto()  # the script is not known there: load it and ask again
    MOVED = enum.auto()  # another node has this slot from now on
    ASK = enum.auto()  # another node has this key already, for this once
    LATER = enum.auto()  # refused before anything was done: ask again in a moment
    ELSEWHERE = enum.auto()  # so is this, and another node may be in charge by now
    FINAL = enum.auto()  # asking again would not help


class Meaning(NamedTuple):
    """How an error reply is to be taken; `node` and `slot` for MOVED and ASK."""

    step: Step
    error: StoreError | None = None
    slot: int = -1
    node: tuple[str, int] = ("", 0)


#: The first word of an error reply → what it means, for those that pass by themselves.
_PASSES = {
    "LOADING": (Step.LATER, "it is still loading its data"),
    "BUSY": (Step.LATER, "it is held up by a slow script; SCRIPT KILL ends that one"),
    "TRYAGAIN": (Step.LATER, "the slot is being moved to another node"),
    "NOREPLICAS": (Step.LATER, "fewer replicas are there than its min-replicas-to-write asks for"),
    "CLUSTERDOWN": (Step.ELSEWHERE, "the cluster is down"),
    "MASTERDOWN": (Step.ELSEWHERE, "it is a replica and has lost its master"),
    "READONLY": (Step.ELSEWHERE, "it is a replica and takes no writes; give the URL of the master"),
    "UNBLOCKED": (Step.ELSEWHERE, "it has become a replica"),
}
#: A script's inner errors, as Redis 6.2 wraps them.
_INSIDE = re.compile(r"-?\b(OOM|READONLY|NOREPLICAS|MISCONF|MASTERDOWN|CLUSTERDOWN|NOPERM|WRONGTYPE)\b")


def read(text: str, where: str) -> Meaning:
    """What an error reply of the server at `where` means."""
    code, _, rest = text.partition(" ")
    if code == "NOSCRIPT":
        return Meaning(Step.LOAD, StoreUnavailable(f"{where} forgets the scripts it is given"))
    if code in ("MOVED", "ASK"):
        slot, _, node = rest.partition(" ")
        host, _, port = node.rpartition(":")
        lost = StoreUnavailable(f"{where}: the cluster's nodes send us from one to the other ({text})")
        return Meaning(Step[code], lost, int(slot), (host, int(port)))
    if code == "ERR" and (inner := _INSIDE.search(rest)) and "script" in rest:
        code = inner[1]
    if code in _PASSES:
        step, why = _PASSES[code]
        return Meaning(step, StoreUnavailable(f"{where} refuses now: {why} ({text})"))
    if text.startswith("ERR max number of clients"):
        return Meaning(Step.LATER, StoreUnavailable(f"{where} has no room for another client ({text})"))
    return Meaning(Step.FINAL, _final(code, text, where))


def _final(code: str, text: str, where: str) -> StoreError:
    match code:
        case "OOM":
            return StoreFull(
                f"{where} has used up its maxmemory; nothing of this call was stored ({text}): "
                "raise maxmemory, or let jobs be finished and pruned"
            )
        case "MISCONF":
            return StoreFull(
                f"{where} cannot save its data to disk; nothing of this call was stored ({text}): "
                "see the server's log"
            )
        case "NOAUTH":
            return StoreError(f"{where} wants a password: write it into the URL, redis://:PASSWORD@HOST")
        case "WRONGPASS":
            return StoreError(f"{where} does not accept this user name and password: check those in the URL")
        case "NOPERM":
            return StoreError(
                f"{where} does not let this user do that ({text}): its ACL needs +@all on the prefix's keys "
                "and channels"
            )
        case "WRONGTYPE":
            return StoreCorrupt(f"{where}: a key of ours holds something else ({text}): give another prefix")
        case "DENIED":
            return StoreError(
                f"{where} is in protected mode: give it a password, or connect from its own host"
            )
    if "user_script" in text:  # it has met what no script of ours has written
        return StoreCorrupt(f"{where}: what is stored there stops a script ({text[:300]})")
    if "without any password configured" in text or "no password is set" in text:
        return StoreError(f"{where} has no password, and the URL gives one: take it out, or set requirepass")
    if "DB index is out of range" in text or "invalid DB index" in text:
        return StoreError(f"{where} has no such database ({text}): give a lower number, as in redis://HOST/0")
    return StoreError(f"{where}: {text}")


# ── connecting ───────────────────────────────────────────────────────────────────────────────────


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from: the driver wraps what the system said."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield at
        at = at.__cause__ or at.__context__


def cannot_connect(error: BaseException, where: str, *, waited: float) -> StoreError:
    """Why there is no connection. StoreUnavailable: it may come by itself."""
    chain = list(_chain(error))
    for cause in chain:
        if isinstance(cause, ssl.SSLError):
            return _no_tls(cause, where)
    for cause in chain:
        match cause:
            case ConnectionRefusedError():
                return StoreUnavailable(f"{where} does not answer (connection refused): is it running?")
            case FileNotFoundError() if where.startswith("unix:"):
                return StoreUnavailable(f"{where} does not answer (there is no such socket): is it running?")
            case FileNotFoundError():
                return StoreError(f"{where}: a file of the TLS options is not there: {cause}")
            case PermissionError():
                return StoreError(
                    f"{where} cannot be opened: {cause.strerror or cause}: check its permissions"
                )
            case socket.gaierror():
                return StoreUnavailable(
                    f"{where}: the host name does not resolve ({cause.strerror}): check it"
                )
            case TimeoutError():
                return _no_answer(where, waited)
    for cause in reversed(chain):
        if isinstance(cause, OSError):
            return StoreUnavailable(f"{where} does not answer ({cause.strerror or cause})")
    if any(type(cause).__name__ == "TimeoutError" for cause in chain):  # the driver's own
        return _no_answer(where, waited)
    return StoreUnavailable(f"{where} cannot be reached ({type(error).__name__}: {error})")


def _no_answer(where: str, waited: float) -> StoreUnavailable:
    """A plain server waits in silence for the end of a TLS handshake that is no command to it."""
    if where.startswith("rediss:"):
        return StoreUnavailable(
            f"{where} does not answer (no TLS connection within {waited:.3g} s): if it has no TLS, use redis://"
        )
    return StoreUnavailable(f"{where} does not answer (no connection within {waited:.3g} s)")


def _no_tls(error: ssl.SSLError, where: str) -> StoreError:
    reason = str(getattr(error, "reason", None) or error)
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = getattr(error, "verify_message", reason)
        return StoreError(
            f"{where}: TLS failed, its certificate is not trusted ({reason}): give "
            "?ssl_ca_certs=FILE, or ssl_check_hostname=false if only the name differs"
        )
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return StoreError(
            f"{where}: TLS failed, it wants a certificate of ours ({reason}): give "
            "?ssl_certfile= and ssl_keyfile="
        )
    if "WRONG_VERSION" in reason or "RECORD_LAYER" in reason or "PACKET_LENGTH" in reason:
        return StoreError(f"{where}: TLS failed, this port does not speak it ({reason}): use redis://")
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)):
        return StoreUnavailable(f"{where}: TLS failed, it hung up ({reason})")
    return StoreError(f"{where}: TLS failed ({reason})")


def lost_because(error: BaseException | None) -> str:
    """Why an open connection is gone, in a few words."""
    if error is None:
        return "it closed the connection"
    for cause in _chain(error):
        if isinstance(cause, OSError):
            return f"the connection was lost: {cause.strerror or cause}"
    return f"the connection was lost: {type(error).__name__}: {error}"
