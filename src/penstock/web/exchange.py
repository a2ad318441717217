"""One HTTP request and its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

#: Characters of a path that a log shows.
_LONGEST_SHOWN = 200


class Connection(Protocol):
    """The connection of a request, as the request knows it."""

    #: The client's IP address; "" if it has none.
    address: str

    @property
    def leaving(self) -> bool:
        """Whether the client has closed the connection, or its side of it: both look the same."""
        ...

    def answer(self, exchange: Exchange, answer: bytes) -> bool:
        """Send an answer; False if the client has closed the connection."""
        ...

    def leave(self, exchange: Exchange) -> None:
        """End a request that is worth nothing without its client, who has left."""
        ...

    def rest(self) -> None:
        """Free what the next request can have anew: the answer takes its time."""
        ...


class Exchange:
    """One request, answered by `answer`, at once or later.

    - `path`, `query`: as sent, not decoded.
    - `headers`: names in lower case, values without surrounding blanks.
    - `body`: b"" if the handler does not want it, or if it is `too_large`.
    - `unproved`: the body was thrown away, because its sender could not prove who it is.
    - `caller`: who sent the request, as the handler finds out: `token:NAME`, `account:NAME`.
    - `on_gone`: called if the client leaves before the answer; see `stays`.
    - `on_end`: called with the status of the answer, or 0 if the client closes the connection before it.
    - `on_logged`: called with the answer, or None if the client closes the connection before it.
    """

    __slots__ = (
        "_values",
        "answered",
        "begun",
        "body",
        "caller",
        "connection",
        "headers",
        "held",
        "last",
        "method",
        "on_end",
        "on_gone",
        "on_logged",
        "path",
        "query",
        "reply",
        "size",
        "too_large",
        "unproved",
        "version",
    )

    def __init__(self, connection: Connection, method: str, path: bytes, query: bytes) -> None:
        self.connection = connection
        self.method = method
        self.path = path
        self.query = query
        self.headers: Sequence[tuple[bytes, bytes]] = ()
        self._values: dict[bytes, bytes] | None = None  # the headers, once one was asked for
        self.version = "1.1"
        self.caller = ""
        self.body = b""
        self.size = 0  # bytes of the body that were received
        self.held = 0  # bytes that it takes in memory, until it is answered
        self.too_large = self.unproved = False
        self.last = False  # the connection ends after this answer
        self.begun = False  # whether the handler was called
        self.answered = False
        self.reply: bytes | None = None
        self.on_gone: Callable[[], None] | None = None
        self.on_end: Callable[[int], None] | None = None
        self.on_logged: Callable[[bytes | None], None] | None = None

    def header(self, name: bytes) -> str | None:
        """The first value of a header, by its name in lower case."""
        known = self._values
        if known is None:
            known = self._values = dict(reversed(self.headers))
        value = known.get(name)
        return None if value is None else value.decode("latin-1")

    def repeats(self, name: bytes) -> bool:
        """Whether a header, which was asked for before, was sent more than once."""
        known = self._values
        if known is None or len(known) == len(self.headers):
            return False
        return [one for one, _ in self.headers].count(name) > 1

    def rest(self) -> None:
        """Free the headers, which are not read again: the answer takes its time."""
        self.headers, self._values = (), None
        self.connection.rest()

    def answer(self, reply: bytes) -> bool:
        """Send the answer, after those of earlier requests of this connection.

        False if the client has closed the connection.
        """
        sent = self.connection.answer(self, reply)
        self.ended(int(reply[9:12]) if sent else 0, reply if sent else None)
        return sent

    def stays(self, on_gone: Callable[[], None]) -> bool:
        """Note that the answer is worth something only to a client that takes it, as a job is.

        `on_gone` is called if the client leaves before. False: it has left, and the request is over.
        """
        if self.gone:
            self.connection.leave(self)
            return False
        self.on_gone = on_gone
        return True

    def left(self) -> None:
        """The client leaves before the answer."""
        if self.on_gone is not None:
            self.on_gone()
        self.ended(0)

    def ended(self, status: int, reply: bytes | None = None) -> None:
        """Call `on_end` and `on_logged`, once."""
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end(status)
        on_logged, self.on_logged = self.on_logged, None
        if on_logged is not None:
            on_logged(reply)

    @property
    def shown_path(self) -> str:
        """The path for a log, which a client must not fill with one request."""
        return self.path[:_LONGEST_SHOWN].decode("latin-1")

    @property
    def address(self) -> str:
        """The address of the client; "" if it has none, as on a Unix socket."""
        return self.connection.address

    @property
    def gone(self) -> bool:
        """Whether the client has closed the connection, or its side of it: both look the same."""
        return self.connection.leaving


#: Handles a request. The answer may come later, by `Exchange.answer`.
Handler = Callable[[Exchange], None]
#: Asks whose request it is, before more than a little of its body is read; calls back with a name for the
#: sender that keeps apart what each holds, or with None: the request will be refused whatever its body is.
Prove = Callable[[Exchange, Callable[[str | None], None]], None]
