"""Tables are aligned by the cells of a terminal, and fit its width."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len

from penstock.cli.show import aligned, cells, fit
from penstock.stores.contract import Store
from tests.cli.conftest import IN_A_FILE, at_terminal, put

HEADS = ("NAME", "TASK", "JOBS")
#: Wide characters, combining ones, and a family of one emoji.
ROWS = [("夜間-報告", "t", "1"), ("cafe\u0301", "\U0001f469\u200d\U0001f467 x", "20"), ("plain", "注文", "3")]


def test_a_table_in_a_pipe_is_aligned_by_cells() -> None:
    lines = aligned(HEADS, ROWS)
    width = max(cells(name) for name, *_ in ROWS)
    assert [line.split()[-1] for line in lines] == ["JOBS", "1", "20", "3"]
    assert len({cell_len(line) for line in lines}) == 1
    assert lines[0].startswith("NAME".ljust(width) + "  TASK")


def test_the_columns_of_a_terminal_are_as_wide_as_their_cells() -> None:
    assert fit(HEADS, ROWS, (), 80).widths[:2] == [9, max(cells(task) for _, task, _ in ROWS)]
    assert fit(("ID", "TASK"), [("注文-0001", "t" * 30)], (), 20).widths[0] == 9  # an id is whole


@pytest.mark.slow
class TestAtATerminal:
    pytestmark = IN_A_FILE

    @pytest.mark.parametrize("columns", [40, 80, 200])
    def test_a_list_fits_its_width(self, store: Store, columns: int) -> None:
        put(store, *(f"job-{n}" for n in range(3)), queue="mail", task="shop.orders.注文処理.send")
        put(store, "later", queue="a-queue-with-a-long-name", task="t", delay=60_000)
        for command in ("jobs list", "queues list", "stats", "workers", "config"):
            shown = at_terminal("--url", store.url, *command.split(), columns=str(columns))
            lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).replace("\r", "").splitlines()
            tables = [line for line in lines if not line.startswith("the terminal is too narrow")]
            # a value is never cut: the terminal wraps the longest ones
            assert all(cell_len(line) <= columns or store.url in line for line in tables), (command, tables)

    def test_where_no_table_fits_each_row_has_lines_of_its_own(self, store: Store) -> None:
        put(store, "0199aaaa-bbbb-7ccc-8ddd-000000000000", "b", queue="mail")
        shown = at_terminal("--url", store.url, "jobs", "list", columns="40", NO_COLOR="1")
        first, second = shown.replace("\r", "").strip().split("\n\n")
        assert first.splitlines()[:2] == ["ID        b", "QUEUE     mail"]
        assert second.splitlines()[0] == "ID        0199aaaa-bbbb-7ccc-8ddd-000000000000"
