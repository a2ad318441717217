"""The layout of `penstock top`: its style sheet, and which keys do what."""

from __future__ import annotations

from textual.binding import Binding, BindingType

from penstock.cli.top.panes import PANES

STYLE = """
Screen { layout: vertical; }
#head, #totals, #tabs, #message, #keys { height: 1; }
#head, #keys { background: $panel; }
#message.bad { background: $error; color: $text; }
#panes { height: 1fr; }
#panes.all { layout: grid; grid-size: 2 3; }
PaneTable { height: 1fr; display: none; }
PaneTable.chosen, #panes.all PaneTable { display: block; }
#panes.all PaneTable { border: round $panel; height: 100%; }
#panes.all PaneTable.chosen { border: round $accent; }
#panes.all #pane-0 { column-span: 2; }
ModalScreen { align: center middle; }
.dialog { width: auto; max-width: 90%; height: auto; max-height: 90%; border: round $accent;
          padding: 0 1; background: $panel; }
Input.dialog { width: 60; }
.tall { width: 90%; }
"""

KEYS: list[BindingType] = [
    *(Binding(str(n + 1), f"choose({n})") for n in range(len(PANES))),
    Binding("tab", "choose_next(1)", priority=True),
    Binding("shift+tab", "choose_next(-1)", priority=True),
    Binding("s", "sort"),
    Binding("o", "turn"),
    Binding("slash", "filter"),
    Binding("escape", "no_filter"),
    Binding("plus", "slower(0.5)"),
    Binding("minus", "slower(2)"),
    Binding("space", "read"),
    Binding("question_mark", "help"),
    Binding("q,ctrl+c", "quit"),
    Binding("p", "act('pause')"),
    Binding("r", "act('retry')"),
    Binding("c", "act('cancel')"),
    Binding("d", "act('delete')"),
    Binding("Q", "act('quiet')"),
    Binding("D", "act('drain')"),
]

#: What the last line says of the keys of acts.
LABELS = {
    "pause": "p pause",
    "retry": "r retry",
    "cancel": "c cancel",
    "delete": "d delete",
    "quiet": "Q quiet",
    "drain": "D drain",
}


def shows_all(columns: int, lines: int) -> bool:
    """Whether a terminal of this size shows all panes at once."""
    return columns >= 160 and lines >= 40
