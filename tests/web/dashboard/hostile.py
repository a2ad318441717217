"""A store in which every text that jobs, workers and callers may choose tries to become markup."""

from __future__ import annotations

from html.parser import HTMLParser
from urllib.parse import quote

from penstock import App
from penstock.core.job import AttemptError, NewJob, Progress, State
from penstock.core.lifecycle import Transition
from penstock.core.relations import BatchTerms, Partition, Tenant
from penstock.core.schedule import NewEntry, Schedule
from penstock.core.stats import TaskStats
from penstock.core.unique import UniqueKey
from penstock.inspector.audit import AuditLog
from penstock.stores.contract import (
    ErrorCount,
    HeartbeatRequest,
    Settlement,
    Share,
    SignalWait,
    StatsReport,
    StepRecord,
    Store,
    TaskCount,
    WorkerInfo,
)
from penstock.stores.job_log import JobLog, LogLine, store_logs
from penstock.workflows import chain

__all__ = ["EVIL", "IDS", "HtmlCheck", "fill_with_hostile_text", "hostile_paths"]

EVIL = (
    "<script>alert(1)</script>\"'><img src=x onerror=alert(1)></title></textarea><svg onload=alert(1)>"
    "{{ 7*7 }}{% raw %}&lt;b&gt;\u202e\x1b[31m\r\nX-Evil: 1 javascript:alert(1)"
)
#: The same without control characters, which no path may have.
_PART = "".join(one for one in EVIL if one >= " ")
#: Jobs in all states: one page each.
IDS = ("dead", "running", "ready", "waiting", "collecting", "parked", "scheduled", "flow")
_LEASE = 600_000


async def fill_with_hostile_text(app: App) -> None:
    """Jobs in the queue `mail` with the ids `IDS`, a flow, a worker, a periodic entry, statistics, an act."""
    store = app.store
    payload = b'{"to":"%s","\\u003cimg src=x onerror=alert(1)\\u003e":["\\ud800",{"a":1e999}]}'
    body = payload % EVIL.encode("unicode_escape").replace(b'"', b'\\"').replace(b"\\x", b"\\u00")
    plain = {"headers": {EVIL: EVIL, "traceparent": EVIL}, "tenant": Tenant(EVIL), "retention": 3_600_000}

    def job(id: str, **more: object) -> NewJob:
        return NewJob(id, EVIL, body, "mail", **{**plain, **more})  # type: ignore[arg-type]

    await store.enqueue([job("dead", unique=UniqueKey(EVIL)), job("running"), job("parked")])
    await _end_one_and_keep_one(store)
    await store.enqueue(
        [
            job("ready", partition=Partition(EVIL)),
            job("waiting", partition=Partition(EVIL)),
            job("collecting", batch_terms=BatchTerms(EVIL, 10, 3_600_000)),
            job("scheduled", delay=3_600_000),
        ]
    )
    worker = WorkerInfo(EVIL, EVIL, 1, 1, ("mail", EVIL), (EVIL,), 4, 1, EVIL, version=EVIL)
    await store.announce(worker)

    @app.task(name="<script>alert(1)</script>", queue="mail")
    def node(text: str) -> None: ...

    await chain(node.job(EVIL), node.job(EVIL)).aenqueue(id="flow", name=EVIL)
    await store.put_entries([NewEntry(EVIL, job("x"), Schedule("every 30s"))])
    stats = TaskStats(started=3, processed=3, failed=2, dead=1, waited=5, ran=5)
    errors = [ErrorCount(EVIL, EVIL, EVIL, EVIL, 2, "dead")]
    await store.add_stats([StatsReport("mail", "w", 1, [TaskCount(EVIL, stats)], errors)])
    await AuditLog(store).write(EVIL, EVIL, "mail/dead", address=EVIL, facts={EVIL: EVIL})


async def _end_one_and_keep_one(store: Store) -> None:
    fetched = await store.fetch([Share("mail", 9, 9)], limit=9, lease=_LEASE, worker=EVIL, token="t")
    for one in fetched.jobs:
        error = AttemptError(1, one.enqueued_at, EVIL, EVIL, f'  File "{EVIL}", line 1\n{EVIL}', EVIL)
        if one.id == "dead":
            dead = Transition(State.DEAD, reason=EVIL, error=error, keep=3_600_000)
            await store.settle([Settlement(one.lease, dead, body_of_result())])
        elif one.id == "parked":
            await store.settle([Settlement(one.lease, Transition(State.PARKED, reason=EVIL))])
        else:
            progress = Progress(1, 2, EVIL)
            await store.extend([HeartbeatRequest(one.lease, _LEASE, started=True, progress=progress)])
            await store.record_steps([StepRecord(one.lease, EVIL[:90], b'"x"', _LEASE)])
            await store.await_signals([SignalWait(one.lease, "s", EVIL[:60], EVIL[:60], _LEASE)])
            log = JobLog(one)
            log.append(LogLine(one.enqueued_at, EVIL))
            await store_logs(store, [(one.lease, log)], _LEASE)


def body_of_result() -> bytes:
    return b'{"<svg onload=alert(1)>": "</script><script>alert(1)</script>"}'


def hostile_paths(path: str) -> list[str]:
    """The addresses of a page: its parts are jobs of the hostile store, and text that tries to get out."""
    parts = [{"queue": "mail", "id": id, "what": "arguments", "act": "retry"} for id in IDS]
    found = {_filled(path, one) for one in parts} | {_filled(path, {})}
    queries = "&".join(
        f"{name}={quote(EVIL)}"
        for name in ("text", "task", "worker", "name", "q", "range", "after", "who", "act", "kind", "key")
    )
    return sorted(found) + [f"{one}?{queries}" for one in sorted(found)[:1]]


def _filled(path: str, parts: dict[str, str]) -> str:
    while "{" in path:
        before, _, rest = path.partition("{")
        name, _, after = rest.partition("}")
        path = before + parts.get(name.partition(":")[0], quote(_PART, safe="")) + after
    return path


class HtmlCheck(HTMLParser):
    """Collects what a page must not have: elements and attributes that run code or lead elsewhere."""

    FORBIDDEN = frozenset({"img", "iframe", "object", "embed", "base", "style", "template", "video", "audio"})
    LINKS = frozenset({"href", "src", "action", "formaction", "data-href", "xlink:href"})

    def __init__(self, base: str = "/") -> None:
        super().__init__()
        self.base = base
        self.faults: list[str] = []
        self.forms: list[tuple[str, str, list[tuple[str, str]]]] = []
        self.links: list[str] = []
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._in_script = tag == "script"
        if tag in self.FORBIDDEN or (tag == "script" and not given.get("src")):
            self.faults.append(f"<{tag}>")
        for name, value in given.items():
            if name.startswith("on") or name in ("style", "srcdoc", "ping", "background"):
                self.faults.append(f"{name}={value[:40]}")
            inside = value.startswith((self.base, "#", "?")) and not value.startswith("//")
            if name in self.LINKS and not inside:
                self.faults.append(f"{name}={value[:40]}")
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "form":
            self.forms.append((given.get("method", "get").lower(), given.get("action", ""), []))
        elif tag in ("input", "select", "textarea", "button") and self.forms and "name" in given:
            self.forms[-1][2].append((given["name"], given.get("value", "")))

    def handle_data(self, data: str) -> None:
        if self._in_script and data.strip():
            self.faults.append(f"script: {data[:40]}")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    @staticmethod
    def asset(html: str, name: str) -> str:
        """The address of a script or style sheet of the page."""
        return html[: html.index(name) + len(name)].rpartition('"')[2]

    @classmethod
    def of(cls, html: str, base: str = "/") -> HtmlCheck:
        made = cls(base)
        made.feed(html)
        made.close()
        return made
