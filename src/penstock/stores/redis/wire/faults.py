"""Translate error replies, lost connections and failed connections to Penstock's errors.

An error reply has two meanings: what to do next (a `Step`), and the error to raise if that does not help.
"""

from __future__ import annotations

import enum
import re
import socket
import ssl
from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.core.errors import StoreCorrupt, StoreError, StoreFull, StoreUnavailable


class ReplyLost(StoreUnavailable):
    """The call was sent, and its answer never came: it may have been executed or not."""


class ServerRestarted(StoreError):
    """The call was not sent: another run of the server has answered the call that it depends on."""


class ErrorReply(Exception):
    """An error reply, as the server wrote it."""


class _Broken(Exception):
    """A connection broke. `replies`: those that came before; `cause`: the error of the system, if any."""

    def __init__(
        self, why: str, replies: list[Any] | None = None, cause: BaseException | None = None
    ) -> None:
        super().__init__(why)
        self.replies = replies or []
        self.cause = cause


class Lost(_Broken):
    """The connection was lost: sent calls may have been executed."""


class Unsent(_Broken):
    """The connection was dead before any byte of the call was written."""


class Step(enum.Enum):
    """What to do after an error reply."""

    LOAD = enum.auto()  # the server does not have the script: load it and send the call again
    MOVED = enum.auto()  # another node has this slot from now on
    ASK = enum.auto()  # another node already has this key: send only this call there
    LATER = enum.auto()  # refused before anything was done: send it again after a pause
    ELSEWHERE = enum.auto()  # as LATER, but another node may be the master by now
    FINAL = enum.auto()  # sending it again would not help


class Meaning(NamedTuple):
    """The meaning of an error reply; `node` and `slot` are for MOVED and ASK."""

    step: Step
    error: StoreError | None = None
    slot: int = -1
    node: tuple[str, int] = ("", 0)


#: The first word of an error reply → its meaning, for temporary errors.
_TEMPORARY = {
    "LOADING": (Step.LATER, "it is still loading its data"),
    "BUSY": (Step.LATER, "a slow script blocks it; SCRIPT KILL ends that script"),
    "TRYAGAIN": (Step.LATER, "the slot is being moved to another node"),
    "NOREPLICAS": (Step.LATER, "it has fewer replicas than its min-replicas-to-write requires"),
    "CLUSTERDOWN": (Step.ELSEWHERE, "the cluster is down"),
    "MASTERDOWN": (Step.ELSEWHERE, "it is a replica and has lost its master"),
    "READONLY": (Step.ELSEWHERE, "it is a replica and takes no writes; give the URL of the master"),
    "UNBLOCKED": (Step.ELSEWHERE, "it has become a replica"),
}
#: A script's inner errors, as Redis 6.2 wraps them.
_INSIDE = re.compile(r"-?\b(OOM|READONLY|NOREPLICAS|MISCONF|MASTERDOWN|CLUSTERDOWN|NOPERM|WRONGTYPE)\b")


def read(text: str, where: str) -> Meaning:
    """Return the meaning of an error reply of the server at `where`."""
    code, _, rest = text.partition(" ")
    if code == "NOSCRIPT":
        return Meaning(Step.LOAD, StoreUnavailable(f"{where} does not keep loaded scripts"))
    if code in ("MOVED", "ASK"):
        slot, _, node = rest.partition(" ")
        host, _, port = node.rpartition(":")
        lost = StoreUnavailable(f"{where}: the cluster's nodes redirect calls in a circle ({text})")
        return Meaning(Step[code], lost, int(slot), (host, int(port)))
    if code == "ERR" and (inner := _INSIDE.search(rest)) and "script" in rest:
        code = inner[1]
    if code in _TEMPORARY:
        step, why = _TEMPORARY[code]
        return Meaning(step, StoreUnavailable(f"{where} refuses calls now: {why} ({text})"))
    if text.startswith("ERR max number of clients"):
        return Meaning(Step.LATER, StoreUnavailable(f"{where} refuses more clients ({text})"))
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
            return StoreError(f"{where} requires a password: write it into the URL, redis://:PASSWORD@HOST")
        case "WRONGPASS":
            return StoreError(f"{where} does not accept this user name and password: check those in the URL")
        case "NOPERM":
            return StoreError(
                f"{where} does not let this user do that ({text}): its ACL needs +@all on the prefix's keys "
                "and channels"
            )
        case "WRONGTYPE":
            return StoreCorrupt(f"{where}: another program uses a key of ours ({text}): use another prefix")
        case "DENIED":
            return StoreError(
                f"{where} is in protected mode: give it a password, or connect from its own host"
            )
    if "user_script" in text:  # the script has read data that Penstock did not write
        return StoreCorrupt(f"{where}: a script fails on damaged data ({text[:300]})")
    if "without any password configured" in text or "no password is set" in text:
        return StoreError(f"{where} has no password, but the URL has one: remove it, or set requirepass")
    if "DB index is out of range" in text or "invalid DB index" in text:
        return StoreError(f"{where} has no such database ({text}): give a lower number, as in redis://HOST/0")
    return StoreError(f"{where}: {text}")


# ── connecting ───────────────────────────────────────────────────────────────────────────────────


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes: the event loop may wrap errors of the system."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield at
        at = at.__cause__ or at.__context__


def cannot_connect(error: BaseException, where: str, *, waited: float) -> StoreError:
    """Return the error for a failed connection. StoreUnavailable: a later attempt may succeed."""
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
                return StoreError(f"{where}: a file of the TLS options does not exist: {cause}")
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
            case ConnectionResetError() | ConnectionAbortedError() | BrokenPipeError():
                return StoreUnavailable(f"{where}: {lost_because(cause)}")
    for cause in reversed(chain):
        if isinstance(cause, OSError):
            return StoreUnavailable(f"{where} does not answer ({cause.strerror or cause})")
    return StoreUnavailable(f"{where} cannot be reached ({type(error).__name__}: {error})")


def _no_answer(where: str, waited: float) -> StoreUnavailable:
    """Return the error for a connection timeout. A server without TLS does not answer a TLS handshake."""
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
            f"{where}: TLS failed, it requires a client certificate ({reason}): give "
            "?ssl_certfile= and ssl_keyfile="
        )
    if "WRONG_VERSION" in reason or "RECORD_LAYER" in reason or "PACKET_LENGTH" in reason:
        return StoreError(f"{where}: TLS failed, this port has no TLS ({reason}): use redis://")
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)):
        return StoreUnavailable(f"{where}: TLS failed, it closed the connection ({reason})")
    return StoreError(f"{where}: TLS failed ({reason})")


def lost_because(error: BaseException | None) -> str:
    """Return why an open connection was lost, in a few words."""
    if error is None:
        return "it closed the connection"
    for cause in _chain(error):
        if isinstance(cause, OSError):
            why = cause.strerror or str(cause)
            return f"the connection was lost: {why}" if why else "it closed the connection"
    return f"the connection was lost: {type(error).__name__}: {error}"
