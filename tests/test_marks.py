"""Few tests are retried, each for a stated reason; what starts a server is marked; long tests come first."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.marks import RETRIES, mark
from tests.order import dealt
from tests.servers import programs

TESTS = Path(__file__).resolve().parent


@pytest.fixture
def item(request: pytest.FixtureRequest) -> pytest.Function:
    """A test that nothing is known of yet."""
    return pytest.Function.from_parent(request.node.parent, name="test_it", callobj=lambda: None)


def test_a_test_marked_timing_is_retried(item: pytest.Function) -> None:
    item.add_marker(pytest.mark.timing("three processes share two cores"))
    mark([item])
    assert item.get_closest_marker("flaky").kwargs == {"reruns": RETRIES}


def test_no_other_test_is_retried(request: pytest.FixtureRequest, item: pytest.Function) -> None:
    mark([item])
    assert item.get_closest_marker("flaky") is None
    assert not request.config.getoption("reruns") or os.environ.get("CI")  # .ci/run says why it retries
    assert "--reruns" not in (TESTS.parent / "Makefile").read_text("utf-8")


@pytest.mark.parametrize("args", [(), ("",), (" ",), (2,), ("why", "else")])
def test_a_timing_mark_without_a_reason_is_refused(item: pytest.Function, args: tuple[object, ...]) -> None:
    item.add_marker(pytest.mark.timing.with_args(*args))
    with pytest.raises(pytest.UsageError, match=r"test_it: say why .*@pytest\.mark\.timing\('reason'\)"):
        mark([item])


def test_few_tests_are_marked_timing() -> None:
    marked = [
        f"{path.relative_to(TESTS)}: {line.strip()}"
        for path in TESTS.rglob("test_*.py")
        for line in path.read_text("utf-8").splitlines()
        if re.match(r"\s*@pytest\.mark\.timing\b", line)
    ]
    assert len(marked) <= 5, "mend them instead: wait for an event, not for some time\n" + "\n".join(marked)


def test_what_uses_a_server_is_marked(redis: object, request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("server")


@pytest.mark.parametrize("kind", ["memory", "redis-cluster"])
def test_what_runs_on_a_store_of_a_server_is_marked(kind: str, request: pytest.FixtureRequest) -> None:
    assert bool(request.node.get_closest_marker("server")) == (kind == "redis-cluster")


def test_a_test_that_is_not_marked_starts_no_server() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"mark this test: @pytest\.mark\.server"):
        programs.redis_program()


def test_long_tests_come_first_in_the_part_of_each_process(request: pytest.FixtureRequest) -> None:
    def tests_of(name: str, number: int, **timeout: int) -> list[pytest.Function]:
        module = pytest.Module.from_parent(request.session, path=TESTS / name)
        tests = [
            pytest.Function.from_parent(module, name=f"test_{n}", callobj=lambda: None) for n in range(number)
        ]
        for test in tests:
            if timeout:
                test.add_marker(pytest.mark.timeout(timeout["timeout"]))
        return tests

    short = tests_of("unit/test_a.py", 9)
    crash, verify = tests_of("crash/test_b.py", 2), tests_of("verify/test_c.py", 1, timeout=300)
    given = [*short[:7], *crash, *verify, *short[7:]]
    assert dealt(given, 2) == [*verify, *short[:5], *crash, *short[5:]]
    assert dealt(given, 1) == [*verify, *crash, *short]
    assert dealt(crash, 4) == crash
