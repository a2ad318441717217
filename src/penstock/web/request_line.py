"""Request lines that other servers take and the parser does not, and targets that are whole addresses."""

from __future__ import annotations

import re

import httptools

_METHOD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}(?= )")
_BEYOND_ASCII = re.compile(rb"[\x80-\xff]")
_ADDRESS = re.compile(rb"https?://([^/?#]*)", re.IGNORECASE)
#: A method that the parser knows, and that no handler does.
_STANDS_IN = b"PATCH"


def readable(data: bytes) -> tuple[bytes, bytes] | None:
    """The method of the request at the begin of `data`, and `data` as the parser reads it; None: it cannot.

    The parser knows registered methods only; the one returned is b"" if it does. Bytes beyond ASCII in the
    target are escaped: clients send UTF-8 as it is.
    """
    found = _METHOD.match(data)
    line, end, rest = data.partition(b"\n")
    if found is None or not end or not line[found.end() :].startswith((b" /", b" http")):
        return None
    method = b"" if _is_known(found[0]) else found[0]
    target = _BEYOND_ASCII.sub(lambda one: b"%%%02X" % one[0][0], line[found.end() :])
    changed = (_STANDS_IN if method else found[0]) + target + end + rest
    return None if changed == data else (method, changed)


def _is_known(method: bytes) -> bool:
    try:
        httptools.HttpRequestParser(None).feed_data(method + b" / HTTP/1.1\r\n")
    except httptools.HttpParserError:
        return False
    return True


def origin_form(target: bytes, headers: list[tuple[bytes, bytes]]) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The path and query of a target that is a whole address, and the headers, with its host (RFC 9112).

    If there are several hosts, they stay several.
    """
    found = _ADDRESS.match(target)
    if found is None:
        return target, headers
    rest = target[found.end() :]
    hosts = [header for header in headers if header[0] == b"host"]
    others = [header for header in headers if header[0] != b"host"]
    return (rest if rest.startswith(b"/") else b"/" + rest), [(b"host", found[1]), *hosts[1:], *others]
