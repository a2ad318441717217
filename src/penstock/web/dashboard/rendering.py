"""Turns templates into pages, and has their scripts and style sheets.

Every value is escaped; a name that is missing is an error.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Mapping
from functools import partial
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from penstock.core.formats import instant, ms_of, shown_text, size_text
from penstock.core.installation import __version__
from penstock.core.job import TERMINAL, State
from penstock.web.dashboard import charts
from penstock.web.dashboard.formats import (
    ago,
    brief,
    compact,
    exact,
    folded_traceback,
    percent,
    plain_line,
    span,
)
from penstock.web.dashboard.identification import form_token
from penstock.web.dashboard.view import View, segment

#: An instant in a sentence, with the word before it.
_INSTANT = re.compile(r"\b(at|until) (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)")


class Templates:
    """The templates of the dashboard."""

    def __init__(self) -> None:
        self._made = Environment(
            loader=PackageLoader("penstock.web.dashboard", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._made.filters |= {
            "instant": instant,
            "size": size_text,
            "base64": lambda data: b64encode(data).decode(),
            "brief": brief,
            "brief_address": lambda text: "/".join((*text.split("/")[:-1], brief(text.rpartition("/")[2]))),
            "span": span,
            "compact": compact,
            "percent": percent,
            "line": plain_line,
            "folded_traceback": lambda text, task: folded_traceback(shown_text(text), task),
            "segment": segment,
            "spark": charts.spark,
            "tojson_text": lambda text: json.dumps(text, ensure_ascii=False),
            "number": lambda value: f"{value:,}",
        }
        self._made.globals |= {
            "states": [state.value for state in sorted(State, key=lambda one: one in TERMINAL)],
        }

    def render(self, name: str, values: Mapping[str, Any]) -> bytes:
        """A template without a visitor."""
        # half a surrogate pair, which JSON may hold, is shown as its code
        return self._made.get_template(name).render(values).encode("utf-8", "backslashreplace")

    def page(self, name: str, view: View, values: Mapping[str, Any]) -> bytes:
        """A template of a page, with the links and rights of its visitor."""
        return self.render(
            name,
            {
                "view": view,
                "link": view.link,
                "visitor": view.visitor,
                "read_only": view.shared.settings.read_only,
                "form_token": form_token(view.cookie),
                "time": partial(_time, view.now),
                "sentence": partial(sentence, view.now),
                **values,
            },
        )


def sentence(now: int, text: str) -> Markup:
    """A sentence of the inspector: `it is due at 2026-11-20T08:30:00.000Z` is in 3 minutes."""
    before, *found = _INSTANT.split(f"{text[:1].upper()}{text[1:].rstrip('.')}.")
    parts = [escape(before)]
    for word, iso, after in zip(found[::3], found[1::3], found[2::3], strict=True):
        at = ms_of(iso)
        known = (
            escape(iso) if at is None else _time(now, at) if word == "at" else escape(f"until {exact(at)}")
        )
        parts += [known, escape(after)]
    return Markup().join(parts)


def _time(now: int, at: int | None) -> Markup:
    """An instant as people say it; the exact one is shown on hover."""
    if at is None:
        return Markup('<span class="none">–</span>')
    return Markup('<time datetime="{}" title="{}">{}</time>').format(instant(at), exact(at), ago(at, now))


# ── scripts and style sheets ─────────────────────────────────────────────────────────────────────

_KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_FOR_EVER = "public, max-age=31536000, immutable"


class Assets:
    """The files of `assets/`, in memory, also compressed.

    Their path has their version. Under an older version are the current ones.
    """

    def __init__(self) -> None:
        found = (one for one in files("penstock.web.dashboard").joinpath("assets").iterdir() if one.is_file())
        bodies = {one.name: one.read_bytes() for one in found if _kind(one.name)}
        self._plain = bodies
        self._small = {name: gzip.compress(body, 9, mtime=0) for name, body in bodies.items()}
        digest = hashlib.sha256(b"".join(bodies[name] for name in sorted(bodies))).hexdigest()
        #: The version in the path: of the package, and of the files themselves.
        self.version = f"{__version__}-{digest[:8]}"

    def size(self, ending: str) -> int:
        """The compressed size of all files with this ending (bytes)."""
        return sum(len(body) for name, body in self._small.items() if name.endswith(ending))

    async def answer(self, request: Request) -> Response:
        """The file that a path names."""
        name = request.path_params["name"]
        if name not in self._plain:
            return PlainTextResponse("there is no such file\n", 404)
        current = request.path_params["version"] == self.version
        headers = {
            "Cache-Control": _FOR_EVER if current else "no-cache",
            "Content-Type": _kind(name),
            "Vary": "Accept-Encoding",
        }
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(self._small[name], headers={**headers, "Content-Encoding": "gzip"})
        return Response(self._plain[name], headers=headers)


def _kind(name: str) -> str:
    return next((kind for ending, kind in _KINDS.items() if name.endswith(ending)), "")
