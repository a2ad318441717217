"""Fuzz tests of user input: durations, rates, sizes, schedules, names, URLs, settings, headers, keys."""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import App, Queue, Unique
from penstock.cli.commands.worker import parse_queues
from penstock.cli.main import cli
from penstock.config import KNOBS, load
from penstock.core.formats import milliseconds
from penstock.core.ids import check_id, check_queue
from penstock.core.limits import Rate
from penstock.core.schedule import Schedule
from penstock.encryption import read_keys
from penstock.errors import ArgumentError, ConfigError
from penstock.stores.connect import check_url, connect
from tests.fuzz import anything, fuzzed, jsons, texts

DURATIONS = ["90s", "5m", "1h30m", "250ms", "1.5d", "2 w", "0"]
RATES = ["100/min", "200/s", "5/2s", "1/day", "0.5/h"]
CRONS = [
    "*/5 * * * *",
    "0 9 * * MON-FRI",
    "0 0 L * *",
    "0 0 * * 5#2",
    "*/10 * * * * *",
    "@daily",
    "every 30s",
    "0 0 29 2 *",
]
URLS = [
    "sqlite:///jobs.db?durability=normal",
    "memory://name",
    "redis://user:hunter2@localhost:6379/0?prefix=a",
    "rediss://:hunter2@h/1?tls_ca=%2Ftmp%2Fca.pem",
    "redis+sentinel://:hunter2@a:1,b:2/main?sentinel_password=hunter2",
    "redis+cluster://a:7000,b:7001?wait_replicas=1",
    "unix:///run/redis.sock?db=1",
]
QUEUES = ["critical:weight=6,default:weight=3:slots=10", "a", "a:b=c"]


@fuzzed(200)
@given(texts(seeds=DURATIONS, alphabet="0123456789.smhdw -") | anything)
def test_a_duration_is_milliseconds_or_refused(value: Any) -> None:
    try:
        ms = milliseconds(value)
    except ConfigError as error:
        assert str(error)
    else:
        assert isinstance(ms, int)
        assert 0 <= ms <= 10**15


@fuzzed(200)
@given(texts(seeds=RATES, alphabet="0123456789./smhd") | anything, st.none() | st.integers())
@example("1/" + "9" * 400 + "s", None)
@example("9" * 2000 + "/" + "9" * 2000 + "/s", None)
@example("1/.s", None)
def test_a_rate_is_one_or_refused(value: Any, burst: int | None) -> None:
    try:
        rate = Rate.of(value, burst=burst)
    except ConfigError as error:
        assert str(error)
    else:
        assert rate.step > 0
        assert Rate.of(str(rate), burst=rate.burst).step == pytest.approx(rate.step)


@fuzzed(60)
@given(texts(seeds=CRONS, alphabet="0123456789*/-,L# @"), st.none() | texts(seeds=["Europe/Berlin", "UTC"]))
def test_a_schedule_recurs_or_is_refused(text: str, tz: str | None) -> None:
    try:
        schedule = Schedule.of(text, tz=tz)
    except ConfigError as error:
        assert str(error)
        return
    after = 1_780_000_000_000
    instants = list(islice(schedule.instants(after), 3))
    assert instants == sorted(set(instants))
    assert all(instant > after for instant in instants)


@fuzzed(150)
@given(texts(seeds=["mail", "a.b:c@d+e=f~g-h"]) | anything)
def test_a_name_is_safe_in_every_key_and_path_or_refused(name: Any) -> None:
    for check in (check_id, check_queue):
        try:
            assert check(name) == name
        except ConfigError as error:
            assert len(str(error)) < 400
        else:
            assert 1 <= len(name) <= 128
            assert not set(name) & set("\0\n\r /\\{}*?[]'\" ")


@fuzzed(200)
@given(texts(seeds=URLS, alphabet="redis:/@?&=#,[]%0"))
@example("redis://[")
@example("redis:/:hunter2@localhost")
@example("user:hunter2@localhost")
@example("memory://:hunter2@localhost/x")
@example("redis://:hunter2/x@localhost?y=z")
@example("redis://localhost?password=hunter2")
@example("redis+sentinel://:hunter2@a:1,b:[2/main?sentinel_password=hunter2")
@example("sqlite:///\ud800")
def test_a_url_is_one_or_refused_and_its_password_is_not_repeated(url: str) -> None:
    try:
        check_url(url)
        shown = connect(url).url if not url.startswith("memory:") else ""
    except ConfigError as error:
        shown = str(error)
    if "hunter2" not in re.sub(r":hunter2@|[?&]\w*password=hunter2", "", url):
        assert "hunter2" not in shown


@fuzzed(200)
@given(texts(seeds=QUEUES, alphabet="ab:=,weightslots019"))
@example("a:weight=" + "9" * 5000)
def test_queues_of_a_worker_are_some_or_refused(text: str) -> None:
    try:
        queues = parse_queues(text)
    except ConfigError as error:
        assert str(error)
    else:
        assert queues
        assert all(isinstance(queue, Queue) for queue in queues)


@pytest.mark.parametrize("name", sorted(KNOBS))
@fuzzed(20)
@given(
    value=texts(
        seeds=[*DURATIONS, "1MB", "64 kib", "true", "none", "auto", "debug"], alphabet="0123456789_kMB"
    )
    | anything
)
@example(value="_")
@example(value="9" * 5000)
def test_a_setting_is_read_or_refused(name: str, value: Any) -> None:
    knob = KNOBS[name]
    try:
        read = knob.kind.read(name, value)
    except ConfigError as error:
        assert name in str(error)
    else:
        assert isinstance(knob.kind.show(read), str)


@fuzzed(100)
@given(st.dictionaries(st.sampled_from([*KNOBS, "nonsense", "LEASE"]), texts(seeds=DURATIONS), max_size=4))
def test_an_environment_is_read_or_refused_line_by_line(given_: dict[str, str]) -> None:
    env = {f"PENSTOCK_{name.upper()}": value for name, value in given_.items() if "\0" not in value}
    try:
        load(env=env)
    except ConfigError as error:
        assert all(line.strip() for line in str(error).splitlines()) or "\n" in "".join(env.values())


@fuzzed(150)
@given(headers=st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=3) | anything)
def test_headers_are_taken_or_refused(headers: Any) -> None:
    app = App("memory://")
    try:
        call = app.raw_job("q", b"", headers=headers)
    except ConfigError as error:
        assert "headers" in str(error)
    else:
        assert call.new().headers == (dict(headers) if headers else None)


_OPTIONS = st.sampled_from(
    [
        "priority",
        "delay",
        "run_at",
        "expires",
        "timeout",
        "deadline",
        "max_attempts",
        "retry",
        "unique",
        "retention",
        "id",
    ]
)


@fuzzed(200)
@given(st.dictionaries(_OPTIONS, texts(seeds=DURATIONS) | anything, max_size=3))
def test_options_of_a_call_are_taken_or_refused(options: dict[str, Any]) -> None:
    app = App("memory://")
    try:
        app.raw_job("q", b"", **options)
    except (ConfigError, ArgumentError) as error:
        assert str(error)


@fuzzed(150)
@given(by=anything, key=anything, states=anything, replace=anything)
def test_a_rule_of_uniqueness_makes_sense_or_is_refused(by: Any, key: Any, states: Any, replace: Any) -> None:
    try:
        Unique(by=by, key=key, states=states, replace=replace)
    except ConfigError as error:
        assert "unique" in str(error)


@fuzzed(150)
@given(texts(seeds=["AAAA" * 10 + "AAA=", "c2VjcmV0"], alphabet="ABCabc012+/=-_,") | anything)
def test_a_key_is_one_or_refused(value: Any) -> None:
    try:
        keys = read_keys(value)
    except ConfigError as error:
        assert "penstock keygen" in str(error)
    else:
        assert all(len(key) == 32 for key in keys)


# ── the command line ─────────────────────────────────────────────────────────────────────────────

TASKS = """
from penstock import App

app = App("sqlite:///jobs.db?durability=normal")


@app.task
def add(a: int, b: float = 1.0, *more: str, **rest: int) -> None: ...
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("fuzz")
    (path / "fuzzed_tasks.py").write_text(TASKS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.syspath_prepend(str(path))
        yield path


@fuzzed(50)
@given(arguments=jsons.map(json.dumps) | texts(seeds=['{"a": 1}', "[1, 2.5]", '{"a": 1, "c": 2}']))
@example(arguments='{"a": ' + "9" * 5000 + "}")
@example(arguments="[" * 5000)
@example(arguments='{"a": 1, "$sealed": 1}')
def test_arguments_on_the_command_line_are_taken_or_refused_in_a_line(folder: Any, arguments: str) -> None:
    words = ["enqueue", "fuzzed_tasks:app", "fuzzed_tasks.add", "--", arguments]
    done = CliRunner().invoke(cli, words, prog_name="penstock", catch_exceptions=False)
    assert done.exit_code in (0, 1, 2), done.output
    if done.exit_code:
        assert done.stderr.startswith("penstock: error: ")
        assert "Traceback" not in done.stderr
