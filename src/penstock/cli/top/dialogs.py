"""What `penstock top` shows over its panes: questions, details and the help."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

HELP = """\
1 to 5, Tab   choose a pane            s   sort by the next column
arrows        choose a row             o   turn the order round
Enter         details of the row       /   show rows with a text
+ and -       read more or less often  Esc show all rows again
Space         read now                 q   quit

p   pause or resume the queue
c   cancel the running job
r   retry the dead job, or all dead jobs of the task of an error
d   delete the dead job, or all dead jobs of the task of an error
Q   let the worker fetch no more jobs
D   let the worker fetch no more jobs, finish its jobs, and end

LATER     queued or suspended, but not ready
OLDEST    age of the oldest ready job
WAIT95    95 % of the starts of the last 5 minutes waited less
IN/S …    jobs enqueued, processed and failed per second
SEEN      time since the last heartbeat of the worker
"""


class Ask(ModalScreen[bool]):
    """A question that is answered by y or n."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("y", "answer(True)", "yes"),
        ("n,escape,q", "answer(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """The question and the keys."""
        yield Static(Text(f"{self._question}\n\ny  yes    n  no"), classes="dialog")

    def action_answer(self, yes: bool) -> None:
        """Close with the answer."""
        self.dismiss(yes)


class AskText(ModalScreen[str | None]):
    """A line to type; Esc returns None."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "leave", "leave")]

    def __init__(self, asked: str, text: str) -> None:
        super().__init__()
        self._asked, self._text = asked, text

    def compose(self) -> ComposeResult:
        """The line."""
        box = Input(self._text, placeholder=self._asked, classes="dialog")
        box.border_title = self._asked
        yield box

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close with the text."""
        self.dismiss(event.value)

    def action_leave(self) -> None:
        """Close without an answer."""
        self.dismiss(None)


class ShowText(ModalScreen[None]):
    """Text to read; any of Esc, Enter, q closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,enter,q,question_mark", "leave", "leave")]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        """The text."""
        box = VerticalScroll(Static(Text(self._text)), classes="dialog tall")
        box.border_title = Text(self._title)
        yield box

    def action_leave(self) -> None:
        """Close."""
        self.dismiss(None)
