"""The benchmarks run. Their figures need a quiet machine; this test only detects broken benchmarks."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from benchmarks import beside_bulk, dashboard, drain_windows
from benchmarks.foreign.programs import PROGRAMS, Missing, Place
from benchmarks.measures import Lab
from benchmarks.measures.features import FEATURES
from benchmarks.measures.features import take as take_features
from benchmarks.measures.figure import QUICK
from benchmarks.rig import Setup
from benchmarks.search import main as measure_many
from benchmarks.server import Server
from benchmarks.soak.samples import KEEP_DEAD, Sample, faults
from penstock.core.job import NewJob
from penstock.stores.connect import connect
from tests.interop.go_programs import lmstfy_folder
from tests.servers.programs import redis_program

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.server]

ROOT = Path(__file__).resolve().parents[1]
#: What is measured of a feature.
ACTS = ("one", "bulk", "drain")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )


def measured(tmp_path: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """What a quick run has written down, and what it printed."""
    out = tmp_path / "values.json"
    ran = run("benchmarks", "--quick", "--dir", str(tmp_path), "--json", str(out), *arguments)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["values.json"], "it left something behind"
    found: dict[str, Any] = json.loads(out.read_text())
    return found, ran.stdout


@pytest.mark.parametrize(
    ("group", "chosen", "of_sqlite"),
    [
        ("enqueue", (), {"sqlite, full", "sqlite, normal"}),
        ("drain", ("--durability", "normal"), {"sqlite, normal"}),
    ],
)
def test_a_quick_run_measures_every_store_and_its_raw_limit(
    group: str, chosen: tuple[str, ...], of_sqlite: set[str], tmp_path: Path
) -> None:
    redis_program()
    found, printed = measured(tmp_path, "--only", group, *chosen)
    setups = found["setups"]
    assert set(setups) == {*of_sqlite, "redis", "memory"}
    for name, values in setups.items():
        assert any(figure.startswith(f"{group}.raw_") for figure in values) == (name != "memory")
        rates = {figure: taken for figure, taken in values.items() if not figure.endswith("cpu")}
        assert all(value > 0 for taken in rates.values() for value in taken)
    assert "% of raw" in printed


def test_redis_is_measured_with_all_that_is_asked_of_it(tmp_path: Path) -> None:
    redis_program()
    groups = "processes,size,leftovers,memory,schedule,depth,latency,result,delay"
    found, printed = measured(tmp_path, "--store", "redis", "--only", groups)
    values = found["setups"]["redis"]
    assert {name.partition(".")[0] for name in values} == set(groups.split(","))
    assert values["size.bytes"][0] > 100
    assert 0 < values["memory.supervisor_uss"][0] < values["memory.pss"][0] < values["memory.rss"][0]
    assert values["schedule.ratio"][0] > 0
    assert values["latency.raw_start_p50"][0] > 0
    (left,) = found["notes"]["leftovers"]
    assert "".join(left.split()) in "".join(printed.split())
    assert "penstock:4:{/default}:meta (hash" in left
    assert ":jobs" not in left, "a job was left behind"


def test_redis_is_measured_with_an_append_only_file_when_asked(tmp_path: Path) -> None:
    redis_program()
    found, _ = measured(tmp_path, "--store", "redis", "--durability", "aof", "--only", "size")
    assert set(found["setups"]) == {"redis, aof"}


def test_a_feature_is_measured_as_a_share_of_plain_jobs(tmp_path: Path) -> None:
    redis_program()
    chosen = ("--only", "features", "--features", "encryption")
    found, printed = measured(tmp_path, "--store", "redis", "--markdown", *chosen)
    values = found["setups"]["redis"]
    assert set(values) == {f"features.{row}_{act}" for row in ("plain", "encryption") for act in ACTS}
    assert "| | redis: one by one | redis: `enqueue_many` | redis: drain |" in printed
    (row,) = [line for line in printed.splitlines() if line.startswith("| encryption")]
    assert row.count(" %") == len(ACTS)


def test_each_feature_can_be_measured(tmp_path: Path) -> None:
    sizes = msgspec.structs.replace(QUICK, seconds=0.02)
    taken = dict(take_features(Lab(Setup("memory"), tmp_path, sizes)))
    assert {name for name in taken if name.endswith("_drain")} == {
        f"{row}_drain" for row in ("plain", *FEATURES)
    }
    assert {name for name in taken if name.startswith("plain")} == {f"plain_{act}" for act in ACTS}
    assert all(float(value) > 0 for value in taken.values())


def test_a_delayed_connection_is_measured_beside_the_usual_one(tmp_path: Path) -> None:
    redis_program()
    found, printed = measured(tmp_path, "--store", "redis", "--delay-ms", "5", "--only", "enqueue,size")
    assert set(found["setups"]) == {"redis", "redis, +5 ms"}
    slow = found["setups"]["redis, +5 ms"]
    assert slow["enqueue.one_sync"][0] < 250  # 5 ms: at most 200/s
    assert "of undelayed" in printed
    assert "size.bytes" not in slow, "room does not depend on the wire"


def test_programs_are_measured_in_one_table_and_a_missing_one_is_named(tmp_path: Path) -> None:
    redis_program()
    out = tmp_path / "values.json"
    chosen = ("--programs", "penstock,mayu", "--python313", "/bin/false", "--venvs", str(tmp_path))
    ran = run("benchmarks.foreign", "--quick", *chosen, "--json", str(out))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "mayu is left out: /bin/false is not Python 3.13 or newer" in ran.stderr
    values = json.loads(out.read_text())["values"]
    assert {name: len(taken) for name, taken in values["penstock"].items()} == dict.fromkeys(
        ("one", "callers", "drain", "cpu", "redis_cpu", "p50", "p99"), 1
    )
    assert list(values) == ["penstock"]
    assert [line for line in ran.stdout.splitlines() if line.startswith("| Penstock, async tasks |")]


@pytest.mark.parametrize(("program", "says"), [("asynq", "Go is not"), ("sidekiq", "Sidekiq is not")])
def test_a_program_of_another_language_is_left_out_where_its_language_is_missing(
    program: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Missing, match=f"{says} on PATH"):
        PROGRAMS[program].prepare(Place(tmp_path))


def test_a_delay_proxy_adds_its_delay_to_each_round_trip_and_once_to_a_pipeline(tmp_path: Path) -> None:
    redis_program()
    server = Server(tmp_path, delay_ms=20)
    try:
        with server.client() as client:
            client.ping()
            took = []
            for _ in range(3):
                started = time.perf_counter()
                client.ping()
                took.append(time.perf_counter() - started)
            pipeline = client.pipeline(transaction=False)
            for n in range(200):
                pipeline.rpush("list", n)
            pipeline.execute()
            kept = client.lrange("list", 0, -1)
    finally:
        server.close()
    assert min(took) > 0.015
    assert kept == [str(n).encode() for n in range(200)]


def test_fairness_finds_nothing_lost_nothing_twice_and_a_sound_file(tmp_path: Path) -> None:
    ran = run("benchmarks.fairness", "--seconds", "1", "--processes", "2", "--dir", str(tmp_path))
    # how long a writer waits is for a quiet machine to say
    faults = [line for line in ran.stdout.splitlines() if line.startswith("FAULT") and "waited" not in line]
    assert "integrity_check: ok" in ran.stdout, ran.stdout + ran.stderr
    assert "lost 0, twice 0, unknown 0" in ran.stdout
    assert not [fault for fault in faults if "fair share" not in fault]


def test_a_drain_is_measured_beside_a_bulk_retry_that_retries_every_dead_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside_bulk, "LockWaits", lambda: SimpleNamespace(waits=[]))  # it patches classes
    monkeypatch.setattr(drain_windows, "_SETTLING", 0.05)
    usual = signal.getsignal(signal.SIGTERM)
    sizes = ("--store", "memory", "--pairs", "1", "--seconds", "0.1", "--dead", "2000")
    try:
        with pytest.raises(SystemExit) as ended:
            beside_bulk.main([*sizes, "--dir", str(tmp_path)])
    finally:
        signal.signal(signal.SIGTERM, usual)
    said = capsys.readouterr().out
    assert re.search(r"^jobs/s: [\d,.]+ alone, [\d,.]+ beside a bulk retry", said, re.MULTILINE), said
    assert "2,000 of 2,000 dead jobs were retried" in said
    faults = [line for line in said.splitlines() if line.startswith("FAULT")]
    assert ended.value.code == (1 if faults else 0)
    # how far the rate falls is for a quiet machine to say
    assert not [fault for fault in faults if "the rate falls" not in fault]
    assert not list(tmp_path.iterdir()), "it left something behind"


def test_limits_are_never_exceeded_by_two_processes() -> None:
    # whether the average is met is for a quiet machine to say
    ran = run("benchmarks.limits", "--seconds", "1", "--processes", "2", "--no-judge")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "begun before their instant: 0" in ran.stdout


def test_a_soak_reports_a_worker_that_does_not_grow(tmp_path: Path) -> None:
    ran = run(
        "benchmarks.soak", "--jobs", "4000", "--first", "2000", "--samples", "4", "--dir", str(tmp_path)
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "stable" in ran.stdout


def test_a_soak_over_some_time_is_drawn(tmp_path: Path) -> None:
    redis_program()
    drawn = tmp_path / "soak.svg"
    facts = ("--jobs", "2000", "--first", "1000", "--minutes", "0.03", "--samples", "3")
    ran = run("benchmarks.soak", "--store", "redis", *facts, "--picture", str(drawn))
    # whether anything grows is for a longer run to say
    assert ran.returncode == 0 or "\nGREW: " in ran.stdout, ran.stdout + ran.stderr
    assert len(ElementTree.parse(drawn).getroot().findall("{*}polyline")) == 6


def sample(**facts: float) -> Sample:
    usual = dict.fromkeys(Sample.__struct_fields__, 0.0)
    return msgspec.convert({**usual, **facts}, Sample, strict=False)


@pytest.mark.parametrize(
    ("grows", "says"),
    [
        ({"worker_pss": 2.0}, "GREW: the worker by 16.0 MB"),
        ({"descriptors": 1}, "GREW: the descriptors from 1 to 9"),
        ({"threads": 1}, "GREW: the threads from 1 to 9"),
        ({"size": 10.0}, "GREW: the store from 10.0 MB"),
        ({"p99": 5.0}, "SLOWER: p99 from 10.0 ms in the first third to 40.0 ms in the last"),
    ],
)
def test_a_soak_says_what_has_grown(grows: dict[str, float], says: str) -> None:
    ((name, by),) = grows.items()
    samples = [sample(jobs=n, dead=KEEP_DEAD, **{name: by * n}) for n in range(1, 10)]
    assert [fault[: len(says)] for fault in faults(samples)] == [says]
    assert faults([sample(dead=KEEP_DEAD)] * 9) == []


@pytest.mark.parametrize("seen", [[35, 37, 37], [35, 35, 37], [35, 35, 37, 37], [35, 36, 35, 37], [37, 35]])
def test_a_soak_does_not_take_a_new_connection_for_a_leak(seen: list[int]) -> None:
    assert faults([sample(dead=KEEP_DEAD, descriptors=n) for n in seen]) == []


def test_pages_and_reads_of_the_dashboard_are_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "_ASKED", 2)
    monkeypatch.setattr(dashboard, "_WARM", 0.1)
    store = connect("memory://measured")
    store.sync.enqueue([NewJob("one", "t")])
    for arguments in (["pages"], ["reads", "--seconds", "0.1"]):
        dashboard.main([arguments[0], store.url, *arguments[1:]])
    said = capsys.readouterr().out
    for path in ("/ ", "/queues/default ", "/jobs/default/one ", "/errors "):
        assert re.search(rf"^{path} +200 p50", said, re.MULTILINE), said
    assert re.search(r"^10 dashboards, \d+ changes: [\d.]+ verbs/s", said, re.MULTILINE)
    store.close()


def test_a_drain_is_measured_beside_open_dashboards(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "_WARM", 0.1)
    monkeypatch.setattr(drain_windows, "_SETTLING", 0.05)
    dashboard.main(["workers", "sqlite", "--pairs", "1", "--seconds", "0.2"])
    said = capsys.readouterr().out
    assert re.search(r"^jobs/s: [\d,.]+ alone, [\d,.]+ beside 10 dashboards", said, re.MULTILINE), said
    assert re.search(r"^the dashboard's process used [\d.]+% of a core", said, re.MULTILINE), said


def test_two_trees_are_compared_by_their_cpu_per_job() -> None:
    ran = run("benchmarks.compare", ".", "--jobs", "200", "--rounds", "1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert [line.partition(":")[0] for line in ran.stdout.splitlines()] == ["async", "thread"]


@pytest.mark.timeout(400)
@pytest.mark.skipif(shutil.which("go") is None, reason="needs Go, which is not installed")
def test_the_servers_of_lmstfys_interface_are_compared(tmp_path_factory: pytest.TempPathFactory) -> None:
    programs = lmstfy_folder(tmp_path_factory)
    command = [sys.executable, "-m", "benchmarks.http", "--reps", "1", "--scale", "0.02"]
    ran = subprocess.run(
        [*command, "--build-dir", str(programs)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for title in ("publish, 64 conn", "bulk of 64, 1 conn", "wake-up among 100 polls", "200 due jobs"):
        assert title in ran.stdout


@pytest.mark.slow
def test_ordered_keys_stay_in_order_though_workers_are_killed() -> None:
    ran = run("benchmarks.partitions", "--jobs", "2000", "--keys", "10", "--workers", "3")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "0 workers were killed" not in ran.stdout


def test_process_tasks_are_compared_with_executors() -> None:
    redis_program()
    ran = run("benchmarks.process_tasks", "--only", "noop,blob", "--reps", "1", "--scale", "0.02")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for title, further in (("no-op", ()), ("1 MB argument", ("fed by redis", "fed by sqlite"))):
        for side in ("executor", "redis", "sqlite", *further):
            assert re.search(rf"^{title} +{side} +[\d,]+/s +[\d.]+ x", ran.stdout, re.MULTILINE), ran.stdout


def test_every_read_among_many_jobs_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db?durability=normal"
    measure_many(["fill", url, "--jobs", "1000"])
    measure_many(["measure", url])
    printed = capsys.readouterr().out
    assert "1,000 jobs in" in printed
    for name in ("dead by end", "text: in an error", "overview", "statistics of tasks, 90 days", "audit log"):
        assert re.search(rf"^{name}.* ms", printed, re.MULTILINE), printed
