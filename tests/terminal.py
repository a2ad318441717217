"""A real terminal for tests: a command in tmux, whose screen and keys are ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers import server_or_skip, until

__all__ = ["Terminal", "terminal"]


class Terminal:
    """A command that runs in a window of tmux."""

    def __init__(self, folder: Path) -> None:
        self._tmux = [server_or_skip("tmux"), "-S", str(folder / "tmux"), "-f", os.devnull]

    def run(self, *words: str) -> str:
        """The output of a command of tmux."""
        # the size is that of the window, not of the terminal that the tests run in
        env = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        done = subprocess.run(
            [*self._tmux, *words], env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def screen(self, *more: str) -> list[str]:
        """The lines on the screen, from top to bottom."""
        return self.run("capture-pane", "-p", *more).split("\n")

    def shows(self, *texts: str) -> list[str]:
        """Wait until the screen has all these texts, and return its lines."""
        seen: list[str] = []

        def there() -> bool:
            seen[:] = self.screen()
            return all(text in "\n".join(seen) for text in texts)

        try:
            until(there, f"{texts} on the screen")
        except Exception as error:
            raise AssertionError("\n".join(seen)) from error
        return seen

    def modes(self) -> list[str]:
        """Whether the alternate screen is shown, and the cursor: "0" and "1" once a program has ended."""
        return self.run("display", "-p", "#{alternate_on} #{cursor_flag}").split()

    def pid(self) -> int:
        """The process of the command."""
        shell = self.run("display", "-p", "#{pane_pid}").strip()
        return int(Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0])

    def press(self, *keys: str) -> None:
        """Type keys, by their names in tmux."""
        self.run("send-keys", *keys)

    def resize(self, columns: int, lines: int) -> None:
        """Change the size of the window."""
        self.run("resize-window", "-x", str(columns), "-y", str(lines))


@contextmanager
def terminal(folder: Path, *words: str, columns: int = 80, lines: int = 24) -> Iterator[Terminal]:
    """Run `penstock` with these words in a terminal; `ended N` is its last line."""
    made = Terminal(folder)
    command = subprocess.list2cmdline([sys.executable, "-m", "penstock", *words])
    size = ("-x", str(columns), "-y", str(lines))
    made.run("new-session", "-d", *size, f"{command}; echo ended $?; read wait")
    try:
        yield made
    finally:
        made.run("kill-server")
