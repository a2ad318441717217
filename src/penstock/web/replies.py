"""The bytes of HTTP answers."""

from __future__ import annotations

import http
import time
from email.utils import formatdate

JSON = b"application/json; charset=utf-8"
TEXT = b"text/plain; charset=utf-8"

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus
}


class Dates:
    """The value of the header `Date`, formatted once a second."""

    __slots__ = ("_second", "_text")

    def __init__(self) -> None:
        self._second = -1
        self._text = b""

    def now(self) -> bytes:
        """The current time as RFC 9110 writes it."""
        second = int(time.time())
        if second != self._second:
            self._second, self._text = second, formatdate(second, usegmt=True).encode()
        return self._text


_DATES = Dates()


def reply(status: int, body: bytes = b"", kind: bytes = JSON, headers: bytes = b"") -> bytes:
    """One whole answer. `headers` are further header lines, each with its line end.

    A 204 has neither body, nor type, nor length.
    """
    line = _STATUS_LINES[status]
    if status == 204:
        return b"%bDate: %b\r\n%b\r\n" % (line, _DATES.now(), headers)
    typed = b"Content-Type: %b\r\n" % kind if kind else b""
    return b"%b%bDate: %b\r\n%bContent-Length: %d\r\n\r\n%b" % (
        line,
        typed,
        _DATES.now(),
        headers,
        len(body),
        body,
    )


def status_of(answer: bytes) -> int:
    """The status of an answer."""
    return int(answer[9:12])


def closing(answer: bytes) -> bytes:
    """The answer, with the header that announces the end of the connection."""
    return answer.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)


def kept_alive(answer: bytes) -> bytes:
    """The answer to a client of HTTP/1.0 that asked to keep the connection."""
    return answer.replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n", 1)


def head_only(answer: bytes) -> bytes:
    """The answer without its body, as a HEAD request gets it."""
    return answer[: answer.index(b"\r\n\r\n") + 4]
