"""Settings: each is declared once, its source is known, and invalid values are reported at once."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from penstock.config import KNOBS, Config, load, mask_url
from penstock.config.knobs import GIVES_UP_AFTER
from penstock.errors import ConfigError
from penstock.worker.executor import interruption
from tests.cases import each

NOWHERE = Path("/nonexistent/penstock.toml")


def problems(**given) -> list[str]:
    given.setdefault("env", {})
    given.setdefault("file", NOWHERE)
    with pytest.raises(ConfigError) as caught:
        load(given.pop("overrides", None), **given)
    return str(caught.value).splitlines()


@pytest.fixture
def toml(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "penstock.toml"
        path.write_text(text, "utf-8")
        return path

    return write


# ── defaults ─────────────────────────────────────────────────────────────────────────────────────


def test_without_any_source_all_values_are_the_defaults():
    loaded = load(env={}, file=NOWHERE)
    assert loaded.config == Config()
    assert {s.source for s in loaded.settings} == {"default"}


def test_the_defaults_are_those_that_the_design_names():
    c = Config()
    assert (c.url, c.namespace, c.queue) == ("sqlite:///jobs.db", "", "default")
    assert (c.timeout, c.max_attempts, c.retention) == (1_800_000, 25, 600_000)
    assert (c.lease, c.heartbeat, c.concurrency, c.processes) == (15_000, 5_000, 20, 1)
    assert (c.drain_timeout, c.safety_poll, c.look_ahead, c.slot_wait) == (30_000, 5_000, 50, 50)
    assert (c.max_payload, c.max_result) == (1_000_000, 1_000_000)
    assert (c.keep_dead, c.keep_dead_count) == (90 * 86_400_000, 100_000)
    assert c.process_slots >= 1


def test_every_knob_is_a_setting_with_a_reason_and_in_order():
    assert [s.name for s in load(env={}, file=NOWHERE).settings] == list(KNOBS)
    assert all(len(knob.why) > 10 for knob in KNOBS.values() if knob.name != "log_level")


def test_a_config_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Config().lease = 1  # type: ignore[misc]


@each("knob", [k for k in KNOBS.values() if k.name != "app"])
def test_what_is_shown_of_a_value_can_be_read_back(knob):
    value = getattr(Config(), knob.name)
    assert knob.kind.read(knob.name, knob.kind.show(value)) == value


# ── who wins ─────────────────────────────────────────────────────────────────────────────────────


def test_options_win_over_code_over_environment_over_file_over_default(toml):
    file = toml("concurrency = 2\nlease = '20s'\nqueue = 'mail'\nnamespace = 'f'\n")
    env = {"PENSTOCK_CONCURRENCY": "3", "PENSTOCK_LEASE": "30s", "PENSTOCK_QUEUE": "env"}
    loaded = load({"concurrency": 4, "lease": 40}, options={"concurrency": 5}, env=env, file=file)
    c = loaded.config
    assert (c.concurrency, c.lease, c.queue, c.namespace, c.processes) == (5, 40_000, "env", "f", 1)
    assert loaded.source("concurrency") == "--concurrency"
    assert loaded.source("lease") == "code"
    assert loaded.source("queue") == "PENSTOCK_QUEUE"
    assert loaded.source("namespace") == str(file)
    assert loaded.source("processes") == "default"


def test_options_are_named_as_they_are_typed():
    loaded = load(options={"drain_timeout": "5s"}, env={}, file=NOWHERE)
    assert loaded.source("drain_timeout") == "--drain-timeout"


def test_an_empty_variable_is_one_that_is_not_set():
    loaded = load(env={"PENSTOCK_URL": "", "PENSTOCK_NAMESPACE": ""}, file=NOWHERE)
    assert loaded.source("url") == loaded.source("namespace") == "default"


def test_the_environment_is_read_as_text_and_code_as_values():
    env = {"PENSTOCK_LEASE": "20", "PENSTOCK_STRICT": "yes", "PENSTOCK_MAX_PAYLOAD": "64kB"}
    c = load({"retention": 2.5, "timeout": None}, env=env, file=NOWHERE).config
    assert (c.lease, c.strict, c.max_payload, c.retention, c.timeout) == (20_000, True, 64_000, 2_500, None)


def test_no_timeout_can_be_written_in_text():
    assert load(env={"PENSTOCK_TIMEOUT": "none"}, file=NOWHERE).config.timeout is None


def test_a_lease_that_is_set_alone_brings_its_heartbeat_with_it():
    loaded = load({"lease": "2s"}, env={}, file=NOWHERE)
    assert loaded.config.heartbeat == 666
    assert loaded.source("heartbeat") == "a third of code"


def test_a_variable_may_name_another_file(toml):
    file = toml("concurrency = 7")
    other = file.rename(file.with_name("other.toml"))
    loaded = load(env={"PENSTOCK_CONFIG": str(other)}, file=NOWHERE)
    assert loaded.config.concurrency == 7
    assert loaded.source("concurrency") == str(other)


def test_kubernetes_variables_of_a_service_named_penstock_are_ignored():
    env = {
        "PENSTOCK_SERVICE_HOST": "10.0.0.1",
        "PENSTOCK_SERVICE_PORT": "80",
        "PENSTOCK_SERVICE_PORT_HTTP": "80",
        "PENSTOCK_PORT": "tcp://10.0.0.1:80",
        "PENSTOCK_PORT_80_TCP_ADDR": "10.0.0.1",
        "PENSTOCK_PORT_80_TCP": "tcp://10.0.0.1:80",
    }
    assert load(env=env, file=NOWHERE).config == Config()


# ── what is wrong ────────────────────────────────────────────────────────────────────────────────


def test_everything_that_is_wrong_is_said_at_once(toml):
    said = problems(
        overrides={"concurency": 1},
        options={"processes": 0},
        env={"PENSTOCK_LEESE": "1s", "PENSTOCK_RETENTION": "soon"},
        file=toml("max_atempts = 3\nlease = '15 parsecs'\n"),
    )
    assert len(said) == 6
    text = "\n".join(said)
    assert "concurency is not a setting (did you mean 'concurrency'?)" in text
    assert "--processes=0 is out of range: use 1 to 1024" in text
    assert "PENSTOCK_LEESE is not a setting (did you mean 'PENSTOCK_LEASE'?)" in text
    assert "PENSTOCK_RETENTION='soon' is not a duration" in text
    assert "penstock.toml: max_atempts is not a setting (did you mean 'max_attempts'?)" in text
    assert "penstock.toml: lease='15 parsecs' is not a duration" in text


def test_an_unknown_variable_that_resembles_nothing_gets_no_hint():
    assert problems(env={"PENSTOCK_XYZZY": "1"}) == ["PENSTOCK_XYZZY is not a setting"]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("url", "jobs.db", "not a store URL"),
        ("url", 3, "is not text"),
        ("namespace", "a b", "cannot be a namespace"),
        ("queue", "a b", "cannot be a queue's name"),
        ("lease", "-1s", "is negative"),
        ("lease", True, "is not a duration"),
        ("lease", "100ms", "too short: the minimum is 200ms"),
        ("announce", "5m", "too long: the maximum is 30s"),
        ("concurrency", 2.5, "is not a whole number"),
        ("concurrency", True, "is not a whole number"),
        ("concurrency", "many", "is not a whole number"),
        ("process_slots", 0, "is out of range"),
        ("max_payload", "1 MBit", "is not a size"),
        ("max_payload", -5, "is not a size"),
        ("strict", "perhaps", "is not true or false"),
        ("log_format", "jsn", "is not one of text, json (did you mean 'json'?)"),
        ("log_level", 10, "is not one of debug, info, warning, error"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(name, value, says):
    (problem,) = problems(overrides={name: value})
    assert problem.startswith(name)
    assert says in problem


def test_a_heartbeat_that_is_too_slow_for_its_lease_is_refused():
    (problem,) = problems(overrides={"lease": "6s", "heartbeat": "4s"})
    assert "heartbeat=4s is more than half of lease=6s" in problem


def test_a_kill_grace_that_would_kill_healthy_children_is_refused():
    """A thread that does not react is given up 3 × thread_grace + 2 s after its timeout; not before that."""
    (problem,) = problems(overrides={"thread_grace": "3s"})
    assert "kill_grace=10s is less than 3 × thread_grace + 2s = 11s" in problem
    assert "kill_grace=11s" in problem
    (problem,) = problems(overrides={"kill_grace": "7s"})
    assert "kill_grace=7s is less than 3 × thread_grace + 2s = 8s" in problem
    load({"thread_grace": "3s", "kill_grace": "11s"}, env={}, file=NOWHERE)
    load({"thread_grace": "0s", "kill_grace": "2s"}, env={}, file=NOWHERE)


def test_the_rule_of_kill_grace_is_that_of_the_executor():
    assert 2 * interruption._REACTION_TIME * 1000 == GIVES_UP_AFTER


def test_a_file_that_is_not_toml_is_named_with_the_place(toml):
    (problem,) = problems(file=toml("lease = = 3\n"))
    assert "penstock.toml is not valid TOML" in problem
    assert "line 1" in problem


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (problem,) = problems(file=tmp_path)
    assert problem.endswith("cannot be read: Is a directory")


def test_settings_in_a_table_are_refused_with_the_way_out(toml):
    (problem,) = problems(file=toml("[penstock]\nlease = '5s'\n"))
    assert problem.endswith("settings belong at the top level, not in a table [penstock]")


def test_a_named_file_must_be_there():
    (problem,) = problems(env={"PENSTOCK_CONFIG": "/nonexistent/x.toml"})
    assert problem == "PENSTOCK_CONFIG='/nonexistent/x.toml': there is no such file"


# ── secrets ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///jobs.db?durability=normal", "sqlite:///jobs.db?durability=normal"),
        ("sqlite:////srv/a:b@c/jobs.db", "sqlite:////srv/a:b@c/jobs.db"),
        ("memory://", "memory://"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:s3cret@host/0", "redis://:***@host/0"),
        ("redis://user:s3cret@host/0", "redis://user:***@host/0"),
        ("redis://user:a/b@c:d@host/0", "redis://user:***@host/0"),
        ("redis+sentinel://u:p@h1:1,h2:2/main?sentinel_password=x&db=1",
         "redis+sentinel://u:***@h1:1,h2:2/main?sentinel_password=***&db=1"),
        ("postgresql://h/db?user=me&password=x", "postgresql://h/db?user=me&password=***"),
        ("redis://h/0?PASSWORD=x", "redis://h/0?PASSWORD=***"),
    ],
)  # fmt: skip
def test_a_url_is_shown_without_its_secrets(url, shown):
    assert mask_url(url) == shown


def test_the_setting_shows_a_masked_url_and_the_config_has_the_whole_one():
    loaded = load({"url": "redis://:s3cret@host/0"}, env={}, file=NOWHERE)
    assert loaded.config.url == "redis://:s3cret@host/0"
    assert "s3cret" not in repr(loaded.settings)


# ── the page ─────────────────────────────────────────────────────────────────────────────────────


def test_the_page_lists_every_setting_as_it_is():
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text("utf-8")
    rows = ["| setting | default | kind | why |", "|---|---|---|---|"]
    for s in load(env={}, file=NOWHERE).settings:
        rows.append(f"| `{s.name}` | {f'`{s.default}`' if s.default else 'empty'} | {s.kind} | {s.why} |")
    table = "\n".join(rows)
    assert table in page, f"docs/configuration.md should have this table:\n{table}"
