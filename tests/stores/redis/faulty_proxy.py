"""A proxy between a client and a server that loses a chosen reply, or drops all bytes."""

from __future__ import annotations

from penstock.stores.redis.wire.address import Address, Node
from penstock.verify.servers import proxy


class FaultyProxy(proxy.Proxy):
    """Forwards all bytes, except what `lose_reply_to` and `dead` say."""

    def __init__(self, port: int) -> None:
        #: Bytes of a request. The request is forwarded, its reply is dropped, and its connection closed.
        self.lose_reply_to = b""
        self.dead = False  # True: drop all bytes of present and later connections
        self._muted: set[proxy.ProxiedConnection] = set()
        super().__init__(port)

    @property
    def address(self) -> Address:
        return Address(mode="single", nodes=(Node("127.0.0.1", self.port),))

    def forwards(self, end: proxy.ConnectionEnd, data: bytes) -> bool:
        if not data:
            return super().forwards(end, data)
        if end.from_client and self.lose_reply_to and self.lose_reply_to in data:
            self.lose_reply_to = b""
            self._muted.add(end.connection)
        elif not end.from_client and end.connection in self._muted:
            end.connection.close()
            return False
        return super().forwards(end, data) and not self.dead
