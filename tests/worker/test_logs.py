"""The log of a worker: complete, without forged, broken or endless lines."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import sys

import pytest

import penstock
from penstock.app.app import App
from penstock.config import Config
from penstock.core.job import State
from penstock.worker.logs import configure_logs, log_with_traceback
from tests.untrusted_text import HOSTILE, clean
from tests.worker.conftest import at_work, becomes, in_a_burst, quick, until
from tests.worker.task_bodies import lines, linger, made, stumble

log = logging.getLogger("tests.of.logs")


class Stderr(io.StringIO):
    """What was written to stderr since it was read."""

    def text(self) -> str:
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


@pytest.fixture
def stderr(monkeypatch) -> Stderr:
    stream = Stderr()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


@pytest.fixture
def root(stderr):
    """The root logger, which a test may change."""
    logger = logging.getLogger()
    level = logger.level
    log.disabled = False  # `logging.config`, in another test of this process, disables what exists
    yield logger
    logger.handlers[:] = [one for one in logger.handlers if type(one).__module__.startswith("_pytest")]
    logger.setLevel(level)


@pytest.fixture(params=["text", "json"])
def form(request, root) -> str:
    configure_logs(Config(log_format=request.param, log_level="info"))
    return str(request.param)


@pytest.fixture
def as_json(root) -> None:
    configure_logs(Config(log_format="json", log_level="info"))


def said(stderr) -> dict[str, object]:
    text = stderr.text()
    assert text.count("\n") == 1, text
    line = text
    document = json.loads(line)
    assert isinstance(document, dict)
    return document


# ── what was said with extra= ────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("as_json")
def test_json_lines_carry_what_was_said_beside_the_message(stderr):
    log.info(
        "paid", extra={"order": 7, "user": {"id": 1, "tags": ["a"]}, "sum": 1.5, "gift": None, "paid": True}
    )
    line = said(stderr)
    assert (line["message"], line["order"], line["sum"], line["gift"], line["paid"]) == (
        "paid",
        7,
        1.5,
        None,
        True,
    )
    assert line["user"] == {"id": 1, "tags": ["a"]}


@pytest.mark.usefixtures("as_json")
def test_a_name_that_is_the_line_s_own_gets_a_mark(stderr):
    log.info("x", extra={"level": "mine", "at": 1, "traceback": "t", "logger": "l", "pid": 3})
    line = said(stderr)
    assert (line["level"], line["level_"], line["at_"], line["traceback_"], line["pid_"]) == (
        "info",
        "mine",
        1,
        "t",
        3,
    )


def test_the_formatter_serves_a_process_that_is_no_worker():
    record = logging.makeLogRecord({"created": 1_795_000_000.25, "name": "uvicorn", "msg": "hi", "order": 7})
    line = json.loads(penstock.logs.JsonFormatter().format(record))
    assert (line["at"], line["logger"], line["message"], line["order"]) == (
        "2026-11-18T11:06:40.250Z",
        "uvicorn",
        "hi",
        7,
    )


class Wordless:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


class Odd:
    def __repr__(self) -> str:
        return "Odd(\x1b\ud800)"


cyclic: list[object] = []
cyclic.append(cyclic)


@pytest.mark.usefixtures("as_json")
@pytest.mark.parametrize(
    "value",
    [
        *(Odd(), Wordless(), cyclic, {1: {2: {3, 4}}}, b"\xff", 10**40, float("nan"), "\ud800", HOSTILE),
        *(object(), {"\ud800": "\udfff"}, {(1, 2): 3}, "x" * 1_000_000, list(range(1_000_000))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_extra_fields_of_a_message_give_a_valid_line_of_bounded_length(stderr, value):
    log.info("x", extra={"value": value, "after": 1})
    line = stderr.text()
    assert line.count("\n") == 1
    assert line.isprintable() or line[:-1].isprintable()
    document = json.loads(line)
    assert "value" in document
    assert document["after"] == 1
    assert len(line) < 10_000


@pytest.mark.usefixtures("as_json")
def test_a_thousand_things_beside_a_message_are_bounded(stderr):
    log.info("x", extra={f"n{n}": n for n in range(1_000)})
    line = said(stderr)
    assert line["n0"] == 0
    assert len(line) < 100


# ── messages and tracebacks ──────────────────────────────────────────────────────────────────────


def test_a_hostile_message_is_one_neutral_line(stderr, form):
    log.warning("%s", HOSTILE)
    text = stderr.text()
    clean(text)
    assert text.count("\n") == 1


def test_an_endless_message_has_an_end(stderr, form):
    log.warning("arguments: %r", ["x" * 1_000] * 10_000)
    assert len(stderr.text()) < 20_000


def test_a_message_whose_arguments_do_not_fit_is_said_all_the_same(root, stderr, form):
    (ours,) = [one for one in root.handlers if not type(one).__module__.startswith("_pytest")]
    ours.handle(log.makeRecord(log.name, logging.WARNING, "", 0, "%d of %d", ("many",), None))
    text = stderr.text()
    assert "%d of %d" in text
    assert "many" in text
    assert "Traceback" not in text


def test_a_traceback_keeps_its_lines_for_people_and_forges_none(stderr, form):
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        log.exception("failed")
    text = stderr.text()
    if form == "json":
        assert "ValueError: a\x1b]0;owned" in json.loads(text)["traceback"]
        return
    clean(text)
    first, *rest = text.splitlines()
    assert first.endswith("failed")
    assert len(rest) > 3
    assert all(line.startswith("  ") for line in rest)


def test_an_endless_traceback_keeps_its_end(stderr, form):
    log_with_traceback(log, logging.ERROR, "x\n" * 100_000 + "ValueError: the end", "failed")
    text = stderr.text()
    assert "ValueError: the end" in text
    assert len(text) < 100_000


def test_a_traceback_that_is_text_is_shown_by_any_formatter(root, stderr):
    root.handlers[:] = [logging.StreamHandler(stderr)]
    log_with_traceback(log, logging.ERROR, "Traceback\nValueError: x", "failed %d", 3, extra={"job_id": "7"})
    assert stderr.text() == "failed 3\nTraceback\nValueError: x\n"


# ── what a worker says ───────────────────────────────────────────────────────────────────────────


def test_a_failure_is_logged_with_its_traceback(app: App, run_in: str, stderr, form):
    made(app, run_in, stumble, max_attempts=1, retry=0).enqueue(HOSTILE)
    asyncio.run(in_a_burst(app))
    text = stderr.text()
    if form == "json":
        (line,) = [line for line in map(json.loads, text.splitlines()) if "failed" in line["message"]]
        assert "task_bodies.py" in line["traceback"]
        assert line["level"] == "error"
    else:
        clean(text)
        assert re.search(
            r"failed: ValueError: .*\n  Traceback.*\n(    .*\n)*    File .*task_bodies\.py", text
        )


async def test_a_drain_says_how_many_run_on_how_long_it_waits_and_what_was_released(
    app: App, tmp_path, caplog
):
    caplog.set_level(logging.INFO, "penstock")
    began = tmp_path / "began"
    handle = await made(app, "async", linger).aenqueue(str(began))
    async with at_work(app, config=quick(drain_timeout="50ms")):
        await until(lambda: bool(lines(began)), "it has begun")
    await becomes(handle, State.AVAILABLE)
    messages = [record.getMessage() for record in caplog.records]
    name = re.escape(re.search(r"worker (\S+) serves", "\n".join(messages)).group(1))
    assert any(
        re.fullmatch(rf"worker {name} drains: 1 job\(s\) may run for up to 50ms; .*", m) for m in messages
    )
    end = rf"worker {name} has stopped: 0 job\(s\) ended, 1 released"
    assert any(re.fullmatch(end, m) for m in messages)


async def test_a_worker_that_is_quiet_says_so(app: App, caplog):
    caplog.set_level(logging.INFO, "penstock")
    made(app, "async", linger)
    async with at_work(app) as worker:
        worker.quiet()
    assert f"worker {worker.id} has stopped fetching; 0 job(s) still run" in caplog.messages
