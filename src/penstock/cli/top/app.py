"""The screen of `penstock top`: reads an overview at an interval, shows its panes, obeys keys."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.containers import Container
from textual.events import DescendantFocus, Resize
from textual.widgets import DataTable, Static

from penstock.cli.top.dialogs import HELP, Ask, AskText, ShowText
from penstock.cli.top.layout import KEYS, LABELS, STYLE, shows_all
from penstock.cli.top.pane_table import PaneTable
from penstock.cli.top.panes import PANES, Rates, totals
from penstock.cli.top.subjects import details, plan
from penstock.core.errors import PenstockError
from penstock.core.text import one_line
from penstock.inspector import Inspector, Overview
from penstock.stores.contract import Store

_SHORTEST, _LONGEST = 0.2, 3_600.0
#: A read without an answer is shown after this time (s).
_ANSWER_LATE = 2.0


class Top(App[None]):
    """The live view of a store. `read_only`: without acts; `place`: the store's name; `interval`: seconds."""

    ENABLE_COMMAND_PALETTE = False
    CSS = STYLE
    BINDINGS = KEYS

    def __init__(self, store: Store, *, place: str, interval: float, read_only: bool = False) -> None:
        super().__init__()
        self._store, self._inspector = store, Inspector(store)
        self._place, self._interval, self._read_only = one_line(place), interval, read_only
        self._tables = [PaneTable(pane, n) for n, pane in enumerate(PANES)]
        self._chosen = 0
        self._view: Overview | None = None
        self._rates: Rates | None = None
        #: Since when (monotonic) no read has had an answer, the last error, and whether the screen says so.
        self._asked_at: float | None = None
        self._why_away, self._away = "", False
        self._kicked = asyncio.Event()

    # ── layout ───────────────────────────────────────────────────────────────────────────────────

    def compose(self) -> ComposeResult:
        """Two lines of facts, the panes, a line for messages, and the keys."""
        yield Static(id="head", markup=False)
        yield Static("reading …", id="totals", markup=False)
        yield Static(id="tabs", markup=False)
        yield Container(*self._tables, id="panes")
        yield Static(id="message", markup=False)
        yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        """Begin to read."""
        self.action_choose(0)
        self._read_on()
        self.set_interval(_ANSWER_LATE, self._check_answer)

    def on_resize(self, event: Resize) -> None:
        """Show all panes if there is room."""
        every = shows_all(event.size.width, event.size.height)
        self.query_one("#panes").set_class(every, "all")
        self.query_one("#tabs").display = not every
        self._lines()

    @property
    def _table(self) -> PaneTable:
        return self._tables[self._chosen]

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """Choose the pane that was clicked."""
        if isinstance(event.widget, PaneTable) and event.widget is not self._table:
            self.action_choose(self._tables.index(event.widget))

    def _lines(self) -> None:
        """Refresh the lines around the panes."""
        mode = "  read-only" if self._read_only else ""
        right = f"{mode}  every {self._interval:g} s  {time.strftime('%H:%M:%S')} "
        room = max(10, self.size.width - len(right))
        left = f" penstock top  {self._place}"
        self._put("head", f"{left if len(left) < room else left[: room - 1] + '…':<{room}}{right}")
        tabs = "  ".join(
            f"[{n + 1} {pane.title}]" if n == self._chosen else f" {n + 1} {pane.title} "
            for n, pane in enumerate(PANES)
        )
        self._put("tabs", f"{tabs}  {self._table.arrangement}")
        acts = () if self._read_only else self._table.pane.acts
        keys = [*(LABELS[act] for act in acts), "s sort", "o order", "/ filter", "Enter details", "? help"]
        self._put("keys", f" {'  '.join([*keys, 'q quit'])}")

    def _put(self, id: str, text: str) -> None:
        self.query_one(f"#{id}", Static).update(Text(text, no_wrap=True, overflow="ellipsis"))

    def _say(self, text: str, *, bad: bool = False) -> None:
        line = self.query_one("#message", Static)
        line.set_class(bad, "bad")
        self._put("message", f" {one_line(text)}")

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    @work(exclusive=True, group="reading")
    async def _read_on(self) -> None:
        while True:
            self._kicked.clear()
            self._asked_at = self._asked_at or time.monotonic()
            try:
                view = await self._inspector.overview()
            except PenstockError as error:
                self._why_away = f": {error}"
                self._say_away()
            else:
                self._took(view)
            self._lines()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self._kicked.wait()

    def _took(self, view: Overview) -> None:
        self._rates = rates = Rates(self._view, view, self._rates)
        if self._away:
            self._say("the store answers again")
        self._asked_at, self._why_away, self._away = None, "", False
        if self._view is None or view.now != self._view.now:  # earlier, if the store's clock was set back
            self._view = view
        self._put("totals", f" {totals(view, rates, self.size.width - 1)}")
        for table in self._tables:
            table.take(table.pane.rows(view, rates))

    def _check_answer(self) -> None:
        """Say it when a read takes long: its error may come only after several seconds."""
        if self._asked_at is not None and time.monotonic() - self._asked_at >= _ANSWER_LATE:
            self._say_away()

    def _say_away(self) -> None:
        self._away = True
        since = "yet"
        if self._view is not None and self._asked_at is not None:
            since = f"for {time.monotonic() - self._asked_at:.0f} s"
        self._say(f"the store does not answer {since}{self._why_away}", bad=True)

    # ── keys ─────────────────────────────────────────────────────────────────────────────────────

    def action_choose(self, number: int) -> None:
        """Choose a pane."""
        self._table.remove_class("chosen")
        self._chosen = number
        self._table.add_class("chosen")
        self._table.focus()
        self._lines()

    def action_choose_next(self, step: int) -> None:
        """Choose the next pane, or the one before."""
        if len(self.screen_stack) == 1:
            self.action_choose((self._chosen + step) % len(PANES))

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._table.sort_by_next()
        self._lines()

    def action_turn(self) -> None:
        """Turn the order round."""
        self._table.turn()
        self._lines()

    @work(exclusive=True, group="filter")
    async def action_filter(self) -> None:
        """Ask for a text that rows must have."""
        text = await self.push_screen_wait(AskText("show only rows with", self._table.text))
        if text is not None:
            self._table.filter_by(text)
            self._lines()

    def action_no_filter(self) -> None:
        """Show all rows."""
        self._table.filter_by("")
        self._lines()

    def action_slower(self, factor: float) -> None:
        """Change the interval."""
        self._interval = min(_LONGEST, max(_SHORTEST, self._interval * factor))
        self._lines()

    def action_read(self) -> None:
        """Read now."""
        self._kicked.set()

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(ShowText("keys", HELP))

    @work(exclusive=True, group="details")
    async def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Show the details of the row."""
        row = self._table.row()
        if row is None:
            return
        try:
            text = await details(self._inspector, row.subject)
        except PenstockError as error:
            self._say(str(error), bad=True)
            return
        await self.push_screen_wait(ShowText(one_line(row.key), text))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether a key does something now: without dialogs, and acts only in panes that have them."""
        if len(self.screen_stack) > 1 and action != "quit":
            return False
        return action != "act" or not self._read_only

    @work(group="acts")
    async def action_act(self, act: str) -> None:
        """Ask, and do an act on the chosen row."""
        row = self._table.row()
        if act not in self._table.pane.acts or row is None:
            return
        self._say(f"{act} …")
        try:
            planned = await plan(self._inspector, act, row.subject)
            if not await self.push_screen_wait(Ask(one_line(planned.question))):
                self._say("")
                return
            says = await planned.run()
            if planned.audited is not None:
                await planned.audited.write(self._store)
        except PenstockError as error:
            self._say(f"{act}: {error}", bad=True)
            return
        self._say(says)
        self._kicked.set()
