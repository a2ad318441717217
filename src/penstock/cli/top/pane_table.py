"""The table of a pane, fitted to its width. The chosen row stays chosen when rows come and go."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.events import Resize
from textual.widgets import DataTable

from penstock.cli.show import fit, justify, style
from penstock.cli.top.panes import Pane, PaneRow, arranged
from penstock.core.text import one_line


class PaneTable(DataTable[Text]):
    """A pane's rows, sorted and filtered."""

    def __init__(self, pane: Pane, number: int) -> None:
        super().__init__(id=f"pane-{number}", cursor_type="row")
        self.pane = pane
        self.text = ""
        self._number = number
        self._sort, self._falling = pane.sort, pane.falling
        self._all: Sequence[PaneRow] = ()
        self._shown: list[PaneRow] = []

    @property
    def arrangement(self) -> str:
        """How the rows are sorted and filtered, in words."""
        filtered = f"  with {one_line(self.text)!r}" if self.text else ""
        return f"by {self.pane.heads[self._sort]} {'▼' if self._falling else '▲'}{filtered}"

    def row(self) -> PaneRow | None:
        """The chosen row; None if there is none."""
        return self._shown[self.cursor_row] if 0 <= self.cursor_row < len(self._shown) else None

    def take(self, rows: Sequence[PaneRow]) -> None:
        """Show these rows from now on."""
        self._all = [row._replace(cells=tuple(map(one_line, row.cells))) for row in rows]
        self._render_rows()

    def filter_by(self, text: str) -> None:
        """Show only rows with this text."""
        self.text = text
        self._render_rows()

    def sort_by_next(self) -> None:
        """Sort by the next column."""
        self._sort = (self._sort + 1) % len(self.pane.heads)
        self._render_rows()

    def turn(self) -> None:
        """Turn the order round."""
        self._falling = not self._falling
        self._render_rows()

    def on_resize(self, event: Resize) -> None:
        """Fit the columns again."""
        self._render_rows()

    def _render_rows(self) -> None:
        chosen, at = self.row(), self.cursor_row
        self._shown = arranged(self._all, filter=self.text, sort=self._sort, falling=self._falling)
        self.border_title = f"{self._number + 1} {self.pane.title} {self.arrangement}"
        heads, cells = self.pane.heads, [row.cells for row in self._shown]
        # a column has a space on either side; the scroll bar takes two
        fitted = fit(heads, cells, self.pane.spare, max(20, self.size.width - 4))
        with self.app.batch_update():
            self.clear(columns=True)
            for n, width in zip(fitted.columns, fitted.widths, strict=True):
                label = Text(heads[n], style="reverse" if n == self._sort else "bold")
                label.justify = justify(cells, n)
                self.add_column(label, width=width)
            for row in cells:
                self.add_row(*(self._cell(row[n], n, cells) for n in fitted.columns))
            keys = [row.key for row in self._shown]
            if chosen is not None and chosen.key in keys:
                at = keys.index(chosen.key)
            if keys:
                self.move_cursor(row=min(at, len(keys) - 1))

    def _cell(self, text: str, column: int, cells: Sequence[Sequence[str]]) -> Text:
        head = self.pane.heads[column]
        colour = style(head, text) or ("yellow" if head == "STATUS" else "")
        aligned = justify(cells, column)
        return Text(text, style=colour, no_wrap=True, overflow="ellipsis", justify=aligned)
