"""Turns templates into pages. Every value is escaped; a name that is missing is an error."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from penstock.core.formats import size_text
from penstock.core.job import TERMINAL, State
from penstock.web.dashboard import charts
from penstock.web.dashboard.formats import ago, brief, compact, exact, percent, plain_line, span
from penstock.web.dashboard.sessions import form_token
from penstock.web.dashboard.tracebacks import folded
from penstock.web.dashboard.view import View, segment

__all__ = ["Templates", "sentence"]

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
            "size": size_text,
            "brief": brief,
            "brief_address": lambda text: "/".join((*text.split("/")[:-1], brief(text.rpartition("/")[2]))),
            "span": span,
            "compact": compact,
            "percent": percent,
            "line": plain_line,
            "folded": folded,
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
        parts += [_time(now, iso) if word == "at" else escape(f"until {exact(iso)}"), escape(after)]
    return Markup().join(parts)


def _time(now: int, iso: str | None) -> Markup:
    """An instant as people say it; the exact one is shown on hover."""
    if iso is None:
        return Markup('<span class="none">–</span>')
    return Markup('<time datetime="{}" title="{}">{}</time>').format(iso, exact(iso), ago(iso, now))
