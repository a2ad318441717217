"""What one client of an HTTP listener may hold of its memory and time, before and after its proof; and who
gives up if unanswered requests take too much."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

# ── bounds of a listener ─────────────────────────────────────────────────────────────────────────


class HttpBounds(msgspec.Struct, frozen=True):
    """The bounds of one listener. Sizes are in bytes, times in seconds.

    - `head`: request line and headers of one request.
    - `headers`: number of headers of one request.
    - `unproved`: of a body, before its sender has proved with a token who it is.
    - `discarded`: how much of a body that is too large is read and thrown away, so that the client can read
      the answer on the same connection. A larger body ends the connection.
    - `requests`: all unanswered requests in memory; `requests_of_one`: those of one token, or of one address.
      Beyond it, the largest unfinished one of the owner who holds most is refused.
    - `uncounted`: a connection's requests up to this size do not count towards these two.
    - `answers`: all answers that clients have not read. Beyond it, the connection of the oldest one ends.
    - `pipelined`: unanswered requests of one connection; what follows is not parsed.
    - `connections`: open connections; beyond it, one of the address that has most of them is closed.
    - `head_time`: from the first byte of a request to the end of its headers.
    - `body_time`, `body_rate`: a body may take `body_time` plus its size divided by `body_rate` (bytes/s). At
      each part that comes this is what is missing: a body that lacks one byte has `body_time` left.
    - `write_time`: how long a client may leave an answer unread.

    An idle connection has no time limit: clients of lmstfy keep connections open, and do not repeat a PUT on
    a connection that the server has closed.
    """

    head: int = 64 * 1024
    headers: int = 100
    unproved: int = 64 * 1024
    discarded: int = 16 * 1024 * 1024
    requests: int = 256 * 1024 * 1024
    requests_of_one: int = 128 * 1024 * 1024
    uncounted: int = 4 * 1024
    answers: int = 256 * 1024 * 1024
    pipelined: int = 64
    connections: int = 10_000
    head_time: float = 10.0
    body_time: float = 30.0
    body_rate: int = 16 * 1024
    write_time: float = 60.0


DEFAULT_BOUNDS = HttpBounds()


# ── the memory of unanswered requests ────────────────────────────────────────────────────────────


class RequestHolder(Protocol):
    """A connection that has requests in memory."""

    @property
    def owner(self) -> str:
        """Whose requests they are: an address, or a token after its proof."""
        ...

    @property
    def proved(self) -> bool:
        """Whether the owner has proved who it is."""
        ...

    @property
    def unfinished(self) -> bool:
        """Whether a part of a request is missing, so that it can be refused."""
        ...

    def give_up(self) -> None:
        """Refuse the unfinished request."""
        ...


class RequestBudget:
    """The bytes of unanswered requests: `most` in all, `most_of_one` of one owner.

    If there are more of one owner, its largest unfinished request is refused, so that a few large ones that
    never end do not keep small ones away. If there are more in all, the same is done to the owner who holds
    most; those without a proof are one owner then, as a client may have many addresses. Of these, which are
    all small, the one gives up that has sent nothing for the longest time.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._held: dict[RequestHolder, tuple[str, int, bool]] = {}
        self._by_owner: dict[str, int] = {}
        self.total = self._unproved = 0

    def hold(self, holder: RequestHolder, size: int) -> bool:
        """Note the bytes that a connection has in memory. False if there is no room, and none can be made."""
        self._note(holder, size)
        while size and (crowd := self._crowd(holder.owner)) is not None:
            payer = max((one for one in crowd if one.unfinished), key=self._weight, default=None)
            if payer is None:
                return False
            self._note(payer, 0)
            payer.give_up()
            if payer is holder:
                return False
        return True

    def _note(self, holder: RequestHolder, size: int) -> None:
        owner, before, proved = self._held.pop(holder, ("", 0, False))
        if before:
            self.total -= before
            self._unproved -= 0 if proved else before
            self._by_owner[owner] -= before
            if not self._by_owner[owner]:
                del self._by_owner[owner]
        if size:
            self.total += size
            self._unproved += 0 if holder.proved else size
            self._held[holder] = holder.owner, size, holder.proved
            self._by_owner[holder.owner] = self._by_owner.get(holder.owner, 0) + size

    def _crowd(self, owner: str) -> Iterable[RequestHolder] | None:
        """Those of whom one has to give up; None: there is room."""
        if self.total > self._most:
            return self._held
        if self._by_owner.get(owner, 0) > self._most_of_one:
            return [one for one, (known, _, _) in self._held.items() if known == owner]
        return None

    def _weight(self, holder: RequestHolder) -> tuple[int, int]:
        owner, size, proved = self._held[holder]
        return (self._by_owner[owner], size) if proved else (self._unproved, 0)  # the first: the silent one
