"""Read the form of a POST request, and check its CSRF token."""

from __future__ import annotations

import asyncio
import hmac
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import ClientDisconnect, Request

from penstock.web.dashboard.identification import form_token

_LONGEST = 256 * 1024
_MOST_FIELDS = 2_000
#: Fields that a page sends with its forms.
_OF_PAGES = frozenset({"form_token", "back", "version"})
#: Seconds in which a form has to arrive.
_PATIENCE = 20.0


class FormError(Exception):
    """A form that is not accepted: the status of the answer, and the reason."""

    def __init__(self, status: int, says: str) -> None:
        super().__init__(says)
        self.status = status


class Form:
    """The fields of a form. A field may be there several times."""

    def __init__(self, fields: list[tuple[str, str]] | None = None) -> None:
        self._fields = fields or []

    def __contains__(self, name: str) -> bool:
        return any(name == one for one, _ in self._fields)

    def get(self, name: str, otherwise: str = "") -> str:
        """The last value of a field, without white space at its ends."""
        return next((value.strip() for one, value in reversed(self._fields) if one == name), otherwise)

    def all(self, name: str) -> list[str]:
        """All values of a field."""
        return [value for one, value in self._fields if one == name]

    def entered(self) -> list[tuple[str, str]]:
        """The fields with a text that the visitor has entered or chosen."""
        return [(name, text) for name, text in self._fields if text.strip() and name not in _OF_PAGES]

    def drop(self, name: str) -> None:
        """Forget a field."""
        self._fields = [pair for pair in self._fields if pair[0] != name]


async def read_form(request: Request, cookie: str | None) -> Form:
    """Read the form of a request and check its CSRF token (`form_token`). Raises FormError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise FormError(415, "this is not a form")
    try:
        async with asyncio.timeout(_PATIENCE):
            body = await _body(request)
    except TimeoutError:
        raise FormError(408, "this form did not arrive in time") from None
    except ClientDisconnect:
        raise FormError(400, "this form is not complete") from None
    try:
        fields = parse_qsl(
            body.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS
        )
    except ValueError:
        raise FormError(400, "this form cannot be read") from None
    form = Form(fields)
    given = form.get("form_token").encode("utf-8", "replace")
    if cookie is None or not hmac.compare_digest(given, form_token(cookie).encode()):
        raise FormError(403, "this form is from another session, or too old: go back, reload and try again")
    return form


async def _body(request: Request) -> bytearray:
    declared = request.headers.get("content-length", "")
    if len(declared) > 9 or (declared.isdecimal() and int(declared) > _LONGEST):
        raise FormError(413, "this form is too large")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LONGEST:
            raise FormError(413, "this form is too large")
    return body


def local_path(text: str, base: str, otherwise: str) -> str:
    """The path if it leads to a page of this dashboard, which is at `base`; else `otherwise`."""
    if not text.isprintable() or "\\" in text or text.startswith("//"):
        return otherwise
    try:
        parts = urlsplit(text)
    except ValueError:
        return otherwise
    inside = parts.path.startswith(f"{base}/") and not parts.path.startswith("//")
    return text if inside and not parts.scheme and not parts.netloc else otherwise
