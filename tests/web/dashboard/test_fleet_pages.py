"""The pages of errors, tasks, workers, limits, the audit log and the health of the store."""

from __future__ import annotations

import asyncio
import html
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import App, QueueDefaults
from penstock.core.errors import StoreUnavailable
from penstock.core.limits import LimitChange
from penstock.core.stats import TaskStats
from penstock.inspector import ErrorGroupView
from penstock.inspector.audit import AuditLog
from penstock.stores.contract import ErrorCount, Share, StatsReport, TaskCount, WorkerInfo
from penstock.stores.worker_commands import CommandChannel, CommandReply
from penstock.web.dashboard.pages.errors import searched_text
from penstock.web.dashboard.view import free_segment, segment
from tests.cli.conftest import Cli
from tests.web.dashboard.conftest import Site
from tests.web.dashboard.test_pages import PAYLOADS, run_all

ODD_NAMES = ("a/b", "..", "!x", "a~2Fb", "größe 100%", "<i>", "a/../b", "日本")


def shown(site: Site, path: str) -> str:
    answer = site.client.get(path)
    assert answer.status_code == 200, (path, answer.text)
    return str(answer.text)


def all_pages(site: Site, path: str) -> str:
    """The text of a list, page by page, until there is no next one."""
    text = ""
    while path:
        page = shown(site, path)
        after = re.search(r'rel="next" href="([^"]+)"', page)
        text, path = text + page, after[1].replace("&amp;", "&") if after else ""
    return text


def put(site: Site, *ids: str, **options: Any) -> None:
    (task,) = site.app.tasks.values()
    for id in ids:
        task.using(id=id, **options).enqueue("ann")


def report(site: Site, number: int, task: str, *messages: str, kind: str = "ValueError") -> None:
    """Statistics of a task of the queue mail with these errors."""
    stats = TaskStats(started=4, processed=4, failed=len(messages), retried=0, dead=len(messages))
    errors = [ErrorCount(f"{number}-{n}", task, kind, text, 1, "") for n, text in enumerate(messages)]
    asyncio.run(
        site.app.store.add_stats([StatsReport("mail", "w", number, [TaskCount(task, stats)], errors)])
    )


def announce(site: Site, id: str = "w1", **facts: Any) -> None:
    known = {"queues": ("mail",), "tasks": ("send",), "concurrency": 4, "version": "0.1.0", **facts}
    now = time.time_ns() // 1_000_000
    asyncio.run(site.app.store.announce(WorkerInfo(id, known.pop("host", "web-1"), 7, now, **known)))


def held(site: Site, *, limit: int, worker: str = "w1") -> None:
    asyncio.run(
        site.app.store.fetch([Share("mail", 9, 9)], limit=limit, lease=60_000, worker=worker, token=worker)
    )


# ── empty stores, faults, names ──────────────────────────────────────────────────────────────────


EMPTY = {
    "/errors": "When a task raises an exception",
    "/tasks": "penstock worker tasks:app",
    "/tasks/send": "No attempts within 1 hour",
    "/workers": "penstock worker tasks:app",
    "/workers/w1": "No live worker has this id",
    "/limits": "penstock enqueue",
    "/audit": "Nobody has changed anything yet",
    "/health": "No queue takes space yet",
}
#: A verb of the store that fails, and what its page shows without it.
FAULTS = (
    ("/errors", "read_errors", "<form"),
    ("/tasks", "read_stats", "Filter"),
    ("/tasks/send", "read_errors", "Attempts"),
    ("/workers", "workers", "Longest running"),
    ("/workers", "search", "web-1"),
    ("/workers/w1", "search", "<title>w1"),
    ("/limits", "queues", "Limits"),
    ("/audit", "read_log", "<form"),
    ("/health", "checkup", "A small read"),
    ("/health", "queue_sizes", "Fleet"),
    ("/health", "queues", "Space"),
)


def test_an_empty_store_teaches(site: Site) -> None:
    for path, says in EMPTY.items():
        assert says in shown(site, path), path


def test_what_an_empty_store_teaches_works(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = "".join(shown(site, path) for path in ("/", "/queues", "/jobs", "/limits"))
    commands = re.findall(r"<pre>penstock (enqueue .+?)</pre>", html.unescape(pages))
    assert len(commands) == pages.count('<a href="/enqueue">choose a task</a>') == 4
    (tmp_path / "tasks.py").write_text(
        f"from penstock import App\napp = App('sqlite:///{tmp_path}/jobs.db')\n"
        "@app.task\ndef send_welcome(user_id: int, lang: str = 'en') -> None: ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "tasks", raising=False)
    Cli("memory://").ok(*shlex.split(commands[0]), url=False)
    put(site, "a")
    site.dashboard._shared.reads.clear()
    (code,) = re.findall(r"<pre>app = (App\(.+?\))</pre>", html.unescape(shown(site, "/limits")))
    made = eval(code, {"App": App, "QueueDefaults": QueueDefaults})
    assert made.queue_defaults["mail"].max_running == 10


def test_a_part_that_fails_leaves_the_others(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    put(site, "a")
    announce(site)

    async def broken(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("the disk is <gone>")

    for path, verb, still in FAULTS:
        with monkeypatch.context() as patch:
            patch.setattr(type(site.app.store), verb, broken)
            page = shown(site, path)
        site.dashboard._shared.reads.clear()
        assert "the disk is &lt;gone&gt;" in page, (path, verb)
        assert still in page, (path, verb)


def test_tasks_and_workers_of_any_name_have_a_page(site: Site) -> None:
    put(site, "a")
    for n, name in enumerate(ODD_NAMES):
        report(site, n + 1, name, "broken")
        announce(site, name, tasks=(name,))
    listed = shown(site, "/tasks") + shown(site, "/workers")
    links = set(re.findall(r'href="(/(?:tasks|workers)/[^"?]+)', listed))
    for kind, says in (("tasks", "broken"), ("workers", "Process")):
        paths = {f"/{kind}/{free_segment(name)}" for name in ODD_NAMES}
        assert paths <= links
        for path in paths:
            assert says in shown(site, path), path
    assert segment("!") == "!%21"


def test_untrusted_names_are_text(site: Site) -> None:
    put(site, "a")
    for n, evil in enumerate(PAYLOADS):
        report(site, n, evil, evil, kind=evil)
        announce(site, evil, host=evil, tasks=(evil,), version=evil, state=evil)
        asyncio.run(AuditLog(site.app.store).write(evil, evil, evil, address=evil, facts={evil: evil}))
    queries = [f"?{name}={evil}" for name in ("text", "name", "who", "after", "order") for evil in PAYLOADS]
    for path in ("/errors", "/tasks", "/workers", "/limits", "/audit", "/health"):
        for query in ("", *queries[:: 1 if path == "/errors" else 4]):
            text = shown(site, path + query)
            assert "<script>alert" not in text
            assert "<img" not in text
    for evil in PAYLOADS:
        for kind in ("tasks", "workers"):
            assert "<img" not in shown(site, f"/{kind}/{free_segment(evil)}")
    assert 'href="javascript' not in shown(site, "/audit")


# ── errors and tasks ─────────────────────────────────────────────────────────────────────────────


def test_errors_are_grouped_and_lead_to_their_jobs(site: Site) -> None:
    (task,) = site.app.tasks.values()
    task.using(max_attempts=1, id="failed").enqueue("nobody")
    put(site, "fine", retention="1h")
    run_all(site.app)
    page = shown(site, "/errors")
    assert "there is no mailbox" in page
    assert '<i class="varying">text</i>' in page
    failed = re.search(r'href="(/jobs\?[^"]*state=dead[^"]*)"', page)
    assert failed is not None
    found = shown(site, failed[1].replace("&amp;", "&"))
    assert 'data-row="mail/failed"' in found
    assert 'data-row="mail/fine"' not in found
    retry = re.search(r'href="(/jobs/change\?[^"]*act=retry[^"]*)"', page)
    assert retry is not None
    found = shown(site, retry[1].replace("&amp;", "&"))
    assert "mail/failed" in found
    assert "mail/fine" not in found
    for query, there in (
        ("text=MAILBOX", True),
        ("text=gone", False),
        ("task=other", False),
        ("since=1h", True),
    ):
        assert ("there is no mailbox" in shown(site, f"/errors?{query}")) is there, query


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("no mailbox <text>", "E: no mailbox"),
        ("<text> has no attribute <text>", "has no attribute"),
        ("<n>", "E:"),
        ("", "E:"),
        ("a long message that was cu…", "E: a long message that was cu"),
    ],
)
def test_the_jobs_of_a_group_are_found_by_what_its_messages_share(message: str, text: str) -> None:
    assert searched_text(ErrorGroupView("q", "g", "t", "E", message, 1, 0, 0, "")) == text


def test_many_errors_are_shown_page_by_page(site: Site) -> None:
    put(site, "a")
    report(site, 1, "t", *(f"kind {chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(120)))
    seen = re.findall(r"<bdi>(kind \w+)</bdi>", all_pages(site, "/errors"))
    assert len(seen) == len(set(seen)) == 120
    assert "kind" in shown(site, "/errors?after=gone&order=most")


def test_tasks_have_rates_percentiles_and_an_order(site: Site) -> None:
    put(site, "a", "b")
    run_all(site.app)
    report(site, 1, "other", "x", "y")
    page = shown(site, "/tasks?range=24h")
    (name,) = site.app.tasks
    assert page.index(f">{name}<") > page.index(">other<")  # it had fewer attempts
    assert "50 %" in page
    assert "/errors?task=other" in page
    page = shown(site, "/tasks?order=p95")
    assert page.index(f">{name}<") < page.index(">other<")
    assert "Run p50" in page
    page = shown(site, "/tasks/other")
    assert "x</bdi>" in page
    assert 'href="/jobs?task=other&amp;state=dead"' in page


def test_a_renamed_task_whose_attempts_count_under_its_oldest_name_is_not_idle(site: Site) -> None:
    announce(site, tasks=("pay", "charge", "refund"), identities={"charge": "pay"})
    put(site, "a")
    report(site, 1, "pay")
    idle = shown(site, "/tasks?range=24h").partition("No attempts in this time")[2]
    assert ">refund<" in idle
    assert ">charge<" not in idle


# ── workers ──────────────────────────────────────────────────────────────────────────────────────


def test_slots_are_cells_and_running_jobs_have_an_age(site: Site) -> None:
    put(site, "a", "b", "c")
    announce(site, running=3, memory=312_000_000, cpu=9.5)
    held(site, limit=3)
    page = shown(site, "/workers")
    assert "3 of 4 slots are busy" in page
    assert page.count('class="b1"') >= 3
    assert "312 MB" in page
    page = shown(site, "/workers/w1")
    assert 'href="/jobs/mail/b"' in page
    assert "Runs for" in page
    assert shown(site, "/workers?name=zzz").count("No worker matches") == 1
    held(site, limit=1, worker="lost")
    put(site, "d")
    held(site, limit=1, worker="gone")
    assert "It holds jobs" in shown(site, "/workers/gone")


def test_a_worker_drains_and_reports_its_stacks(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    announce(site, supervisor=3)
    announce(site, "alone", host="web-2")
    replies = iter([CommandReply(True, "draining <now>"), CommandReply(True, "File <b>"), None])

    async def answered(self: Any, sent: Any, *, timeout: float) -> Any:
        reply = next(replies)
        return [msgspec.structs.replace(one, reply=reply) for one in sent]

    monkeypatch.setattr(CommandChannel, "replies", answered)
    assert "restart" in shown(site, "/workers/w1").lower()
    assert "/act/restart" not in shown(site, "/workers/alone")
    answer = site.post(site.client, "/workers/w1/act/drain")
    assert answer.headers["location"] == "/workers/w1"
    assert "draining &lt;now&gt;" in shown(site, "/workers/w1")
    answer = site.post(site.client, "/workers/w1/stacks")
    assert (answer.status_code, "File &lt;b&gt;" in answer.text) == (200, True)
    assert "did not answer" in site.post(site.client, "/workers/w1/stacks").text
    page = shown(site, "/audit?act=workers.")
    assert page.count("workers.stacks") >= 2
    assert "workers.drain" in page
    assert site.post(site.client, "/workers/none/stacks").status_code == 303
    assert site.post(site.client, "/workers/w1/act/paint").status_code == 404


def test_rights_on_some_queues_show_their_workers_alone(site: Site) -> None:
    put(site, "a", "b")
    announce(site, "both", queues=("mail", "orders"), tasks=("secret_task",), running=2)
    announce(site, "other", host="web-9")
    held(site, limit=2, worker="both")
    client = site.logged_in(site.token("half", "read:orders"))
    page = client.get("/workers").text
    assert "both" in page
    assert "web-9" not in page
    assert "/jobs/mail" not in page
    page = client.get("/workers/both").text
    assert "2 of 4" in page
    assert "mail" not in page
    assert "secret_task" not in page
    assert client.get("/workers/both/stacks").status_code == 403
    for path in ("/audit", "/health"):
        assert "your rights are on some" in client.get(path).text


# ── limits, audit, health ────────────────────────────────────────────────────────────────────────


def test_limits_show_who_holds_them_and_are_reset(site: Site) -> None:
    store = site.app.store
    put(site, "a", "b")
    asyncio.run(store.settings("mail", limits=LimitChange.of(max_running=1, throttle="5m")))
    asyncio.run(store.settings("mail", limits=LimitChange.of(throttle=None)))
    held(site, limit=1)
    page = shown(site, "/limits")
    assert 'href="/jobs/mail/a"' in page
    assert "by an operator" in page
    site.post(site.client, "/queues/mail/throttle", "/limits", time="5m", back="/limits")
    page = shown(site, "/limits")
    assert "stopped by anonymous" in page
    assert "starts again" in page
    answer = site.post(site.client, "/queues/mail/throttle", "/limits", back="/limits")
    assert answer.headers["location"] == "/limits"
    site.post(site.client, "/queues/mail/reset", "/limits", back="/limits")
    assert "No queue is limited" in shown(site, "/limits")


def test_the_audit_log_is_filtered_and_paged(site: Site) -> None:
    log = AuditLog(site.app.store)

    async def write() -> None:
        for n in range(130):
            await log.write(
                f"token:{'ann' if n % 2 else 'bob'}", "jobs.retry", f"mail/j{n}", facts={"n": str(n)}
            )
        await log.write("token:ann", "queue.pause", "Mail")

    asyncio.run(write())
    seen = re.findall(r'href="/jobs/mail/(j\d+)"', all_pages(site, "/audit?who=token:ann&act=jobs"))
    assert seen == [f"j{n}" for n in range(129, 0, -2)]
    assert 'href="/queues/Mail"' in shown(site, "/audit?to=mail&act=queue")
    assert "No act matches" in shown(site, "/audit?who=ann")
    assert shown(site, "/audit?after=9999999999999999999999").count("<tr>") == 51


def test_health_has_checks_sizes_and_response_times(site: Site) -> None:
    put(site, "a")
    page = shown(site, "/health")
    assert "penstock" in page.lower()
    assert re.search(r"<b>[\d.]+ ms</b>", page)
    assert "no live worker serves" in page
    assert 'href="/queues/mail"' in page
