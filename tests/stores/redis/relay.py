"""A wire between a client and a server that a test may cut, or let go dead."""

from __future__ import annotations

from penstock.stores.redis.wire.address import Address, Node
from penstock.verify.servers import proxy


class Relay(proxy.Relay):
    """Passes bytes on, until told otherwise."""

    def __init__(self, port: int) -> None:
        #: Bytes of a request: what is behind them is passed on, the reply is not, and the wire is cut.
        self.lose_reply_to = b""
        self.dead = False  # what comes is swallowed, on the wires of now and later
        self._muted: set[proxy.Wire] = set()
        super().__init__(port)

    @property
    def address(self) -> Address:
        return Address(mode="single", nodes=(Node("127.0.0.1", self.port),))

    def passes(self, end: proxy.End, data: bytes) -> bool:
        if not data:
            return super().passes(end, data)
        if end.upward and self.lose_reply_to and self.lose_reply_to in data:
            self.lose_reply_to = b""
            self._muted.add(end.wire)
        elif not end.upward and end.wire in self._muted:
            end.wire.hang_up()
            return False
        return super().passes(end, data) and not self.dead
