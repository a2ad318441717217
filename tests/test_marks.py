"""No test is retried; what starts a server is marked; long tests come first."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.order import dealt
from tests.servers import programs

TESTS = Path(__file__).resolve().parent


def test_no_test_is_retried() -> None:
    """What fails now and then is a finding, of the product or of its test."""
    root = TESTS.parent
    files = [root / "Makefile", root / "pyproject.toml", *(root / ".ci").iterdir()]
    assert not [
        file.name for file in files if re.search("reruns|rerunfailures|flaky", file.read_text("utf-8"))
    ]


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


# ── times that the machine decides ───────────────────────────────────────────────────────────────

#: What tells the time of the machine. The time of a process's own work (`process_time`) is not among them.
_CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "lease_seconds"}


_TELLS = re.compile("|".join([*_CLOCKS, "\\[.at.\\]"]))


class Measured(ast.NodeVisitor):
    """Finds assertions that a measured time is less than some number, in one function."""

    def __init__(self) -> None:
        self.instants: set[str] = set()  # names of what comes from a clock
        self.spans: set[str] = set()  # and of differences of such
        self.found: list[ast.Assert] = []

    def tells(self, node: ast.AST) -> bool:
        """Whether the value comes from a clock, or from a time that another process has noted (`["at"]`)."""
        return any(
            (isinstance(one, ast.Call) and _name_of(one.func) in _CLOCKS)
            or (isinstance(one, ast.Name) and one.id in self.instants | self.spans)
            or (isinstance(one, ast.Constant) and one.value == "at")
            for one in ast.walk(node)
        )

    def is_span(self, node: ast.AST) -> bool:
        return any(
            (
                isinstance(one, ast.BinOp)
                and isinstance(one.op, ast.Sub)
                and self.tells(one)
                and not isinstance(one.right, ast.Constant)
            )
            or (isinstance(one, ast.Name) and one.id in self.spans)
            for one in ast.walk(node)
        )

    def note(self, name: ast.AST, value: ast.AST) -> None:
        if isinstance(name, ast.Name) and self.tells(value):
            (self.spans if self.is_span(value) else self.instants).add(name.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        pairs = [(target, node.value) for target in node.targets]
        for target, value in pairs:
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs += zip(target.elts, value.elts, strict=False)  # a star takes the rest
            self.note(target, value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.note(node.target, node.value)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            self.note(node.func.value, node.args[0])
        self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        for one in ast.walk(node.test):
            if isinstance(one, ast.Compare):
                sides = zip([one.left, *one.comparators], one.ops, one.comparators, strict=False)
                if any(self._limits(*side) for side in sides):
                    self.found.append(node)

    def _limits(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> bool:
        if isinstance(op, ast.Gt | ast.GtE):
            left, right = right, left
        elif not isinstance(op, ast.Lt | ast.LtE):
            return False
        return self.is_span(left) and not self.tells(right)  # a share of a measured time is none of these


def _name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _measured(source: str) -> list[ast.Assert]:
    found: list[ast.Assert] = []
    if not _TELLS.search(source):
        return found
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            measured = Measured()
            for _ in range(2):  # a name may be used above where a loop sets it
                measured.found.clear()
                measured.visit(node)
            found += measured.found
    return found


@pytest.mark.parametrize(
    "line",
    [
        "assert time.monotonic() - began < 5",
        "took = time.perf_counter() - began; assert 0.1 < took <= 2 * SOON",
        "assert 5 > max(line['at'] for line in lines) - killed",
        "took.append(monotonic() - began); assert sorted(took)[2] < 0.1",
        "a, late = 1, time.monotonic(); assert late - began < 0.5, 'late'",
    ],
)
def test_an_assertion_of_a_measured_time_is_found(line: str) -> None:
    assert len(_measured(f"def test_it():\n    {line}")) == 1


@pytest.mark.parametrize(
    "line",
    [
        "assert time.monotonic() - began > 0.1",
        "assert began <= told.at <= time.monotonic()",
        "used = time.process_time(); assert time.process_time() - used < 0.1",
        "until = time.monotonic() + 60; assert time.monotonic() < until",
        "said, began = warnings(), time.monotonic(); assert len(said) < 3",
    ],
)
def test_an_order_of_times_and_the_work_of_a_process_are_no_such_assertions(line: str) -> None:
    assert not _measured(f"def test_it():\n    {line}")


def test_no_test_asserts_a_time_that_the_machine_decides() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{node.lineno}: {ast.unparse(node.test)}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in _measured(path.read_text("utf-8"))
    ]
    assert not found, "wait for an event, compare orders or move the clock:\n" + "\n".join(found)
