"""The stderr of a child: passed on to the worker's, and its last lines kept for the error of a crash."""

from __future__ import annotations

import asyncio
import os

__all__ = ["ChildStderr"]

_READ = 1 << 16
#: Size of the kept end (bytes), and the maximum number of its lines.
_KEPT, _LINES = 4096, 20


class ChildStderr:
    """A pipe that a child writes to. `write_end` is closed by its user once the child has it."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._tail = b""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open = True

    def start(self) -> None:
        """Pass on what the child writes, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read_end, self.pump)

    def pump(self) -> None:
        """Pass on what has arrived."""
        if not self._open:
            return
        try:
            data = os.read(self._read_end, _READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._tail = (self._tail + data)[-_KEPT:]
        try:
            os.write(2, data)
        except OSError:  # the worker has no stderr
            pass

    def last_lines(self) -> str:
        """The last lines that the child has written; an empty text if it has written none."""
        lines = self._tail.decode(errors="replace").splitlines()
        return "\n".join(lines[-_LINES:])

    def close(self) -> None:
        if self._open:
            self._open = False
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._read_end)
            os.close(self._read_end)
