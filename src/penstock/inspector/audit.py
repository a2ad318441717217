"""The audit log: who did which act of an operator or administrator, from where and when."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

import msgspec

from penstock.core.errors import StoreError
from penstock.core.formats import instant
from penstock.core.job import Ref
from penstock.stores.contract import Store

_log = logging.getLogger("penstock.audit")

_LOG = "audit"
#: The newest entries that are kept.
_KEPT = 10_000
_PAGE = 500
#: The newest entries among which the acts on one job are looked for.
LOOKED_AT = 2_000
_LONGEST = 500
#: Facts that hold contents of jobs: the log has only their length. Who may read the log need not read jobs.
REDACTED = frozenset({"args", "kwargs", "arguments", "payload", "text", "result", "data"})


class AuditEntry(msgspec.Struct, frozen=True):
    """One act, as it is stored.

    - `who`: the name of a token, an account or a user, after its kind: `token:deploy`, `cli:ann@host`.
    - `address`: the client's IP address; "" for the command line and unix sockets.
    - `act`: what was done: `queue.destroy`, `tokens.create`.
    - `to`: the name of the queue, token or job; several are separated by ", ".
    - `status`: the status of the HTTP answer; None for the command line.
    - `facts`: the arguments of the act, as text; never a secret, and nothing of the contents of jobs
      (`REDACTED`).
    """

    who: str
    address: str
    act: str
    to: str
    status: int | None = None
    facts: dict[str, str] = {}


class ShownEntry(msgspec.Struct, frozen=True):
    """An entry with its number and the store's clock when it was written."""

    number: int
    at: int
    entry: AuditEntry

    def to_dict(self) -> dict[str, object]:
        """The entry as a dict for JSON."""
        return {"number": self.number, "at": instant(self.at), **msgspec.structs.asdict(self.entry)}


class AuditFilter(msgspec.Struct, frozen=True):
    """Which entries: those for which all of this is true. The default matches every entry.

    - `who`, `act`: what the entry's `who` or `act` begins with.
    - `to`: a part of one of the names in the entry's `to`; letters match in either case.
    """

    who: str = ""
    act: str = ""
    to: str = ""

    def matches(self, entry: AuditEntry) -> bool:
        """Whether an entry is one of these."""
        return (
            entry.who.startswith(self.who)
            and entry.act.startswith(self.act)
            and self.to.casefold() in entry.to.casefold()
        )


EVERY_ACT = AuditFilter()


class AuditPage(msgspec.Struct, frozen=True):
    """Entries, newest first. `next`: the `before` of the next page; None: there are no older entries.

    `seen`: how many entries were read. A page may be short or empty, and yet have a next one.
    """

    entries: list[ShownEntry]
    next: int | None
    seen: int


_DECODER = msgspec.json.Decoder(AuditEntry)


class AuditLog:
    """The audit log of a store: its newest 10 000 entries."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def write(
        self,
        who: str,
        act: str,
        to: str | Sequence[str],
        *,
        address: str = "",
        status: int | None = None,
        facts: Mapping[str, str] | None = None,
    ) -> None:
        """Append an entry; several if the names in `to` are too long for one.

        An error of the store is logged with the first entry, because the act is done. So is an act on a store
        that keeps no log.
        """
        cut = {
            name: redacted(text) if name in REDACTED else _short(text)
            for name, text in list((facts or {}).items())[:20]
        }
        lines = _lines([to] if isinstance(to, str) else to)
        entries = [AuditEntry(_short(who), address, act, line, status, cut) for line in lines]
        try:
            await self._store.append_log(_LOG, [msgspec.json.encode(one) for one in entries], keep=_KEPT)
        except StoreError as error:
            where = f" from {address}" if address else ""
            _log.error("not in the audit log (%s): %s %s %s%s", error, who, act, lines[0], where)

    async def of_job(self, ref: Ref, *, most: int = 100) -> list[ShownEntry]:
        """The newest acts on this job, newest first, among the newest `LOOKED_AT` entries of the log.

        An act names a job by its id, or by queue/id, also of the queue from which it was moved. Acts on all
        jobs of a filter name none.
        """
        queue = ref.queue
        found: list[ShownEntry] = []
        seen = 0
        async with aclosing(self.newest_first()) as entries:
            async for one in entries:
                seen += 1
                queue = _moved_from(one.entry, queue, ref.id) or queue
                if not {ref.id, f"{queue}/{ref.id}"}.isdisjoint(one.entry.to.split(", ")):
                    found.append(one)
                if len(found) == most or seen == LOOKED_AT:
                    break
        return found

    async def page(
        self, filter: AuditFilter = EVERY_ACT, *, before: int | None = None, limit: int = 50
    ) -> AuditPage:
        """At most `limit` entries that match, older than the number `before`, of at most `LOOKED_AT` read."""
        found: list[ShownEntry] = []
        seen = 0
        while seen < LOOKED_AT:
            stored = await self._store.read_log(_LOG, before=before, limit=_PAGE)
            for one in stored.entries:
                seen, before = seen + 1, one.number
                entry = _read(one.body)
                if filter.matches(entry):
                    found.append(ShownEntry(one.number, one.at, entry))
                if len(found) == limit:
                    last = stored.next is None and one is stored.entries[-1]
                    return AuditPage(found, None if last else before, seen)
            before = stored.next
            if before is None:
                break
        return AuditPage(found, before, seen)

    async def newest_first(self, filter: AuditFilter = EVERY_ACT) -> AsyncGenerator[ShownEntry, None]:
        """Yield the entries that match, newest first."""
        before: int | None = None
        while True:
            page = await self._store.read_log(_LOG, before=before, limit=_PAGE)
            for stored in page.entries:
                entry = _read(stored.body)
                if filter.matches(entry):
                    yield ShownEntry(stored.number, stored.at, entry)
            before = page.next
            if before is None:
                return


def redacted(text: str) -> str:
    """What the log has in the place of a text that may be of a job's contents."""
    return f"({len(text):,} characters)"


def _moved_from(entry: AuditEntry, queue: str, id: str) -> str | None:
    """The queue from which this act has moved the job with this id to `queue`; None if it is another act."""
    if entry.act != "jobs.move" or entry.facts.get("to") != queue:
        return None
    names = (name.rpartition("/") for name in entry.to.split(", "))
    return next((before for before, _, one in names if one == id and before), None)


def _read(body: bytes) -> AuditEntry:
    try:
        return _DECODER.decode(body)
    except msgspec.MsgspecError:  # of a newer version, or damaged
        return AuditEntry("", "", "unreadable", "")


def _lines(names: Sequence[str]) -> list[str]:
    """The names, separated by ", ", in lines of at most `_LONGEST` characters: no name is in two lines."""
    lines: list[str] = []
    for name in map(_short, names):
        if lines and len(lines[-1]) + 2 + len(name) <= _LONGEST:
            lines[-1] += f", {name}"
        else:
            lines.append(name)
    return lines or [""]


def _short(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()[:_LONGEST]
