"""The stderr of a child: passed on to the worker's, and its last lines kept for the error of a crash."""

from __future__ import annotations

import asyncio
import os
import select

__all__ = ["ChildStderr"]

_READ = 1 << 16
#: Size of the kept end (bytes), and the maximum number of its lines.
_KEPT, _LINES = 4096, 20
#: If the worker's stderr is full, it is tried again after this time (s).
_RETRY = 0.05
#: What a pipe with room takes without blocking (bytes).
_PIECE: int = getattr(select, "PIPE_BUF", 512)


class ChildStderr:
    """A pipe that a child writes to. `write_end` is closed by its user once the child has it.

    While nobody reads the worker's stderr, the child waits, as if it wrote there itself; the worker does not.
    """

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._tail = b""
        self._unwritten = b""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._open = True

    def start(self) -> None:
        """Pass on what the child writes, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read_end, self.pump)

    def pump(self) -> None:
        """Pass on what has arrived."""
        if self._open and not self._unwritten:
            self._read()

    def last_lines(self) -> str:
        """The last lines that the child has written; an empty text if it has written none."""
        if self._open:
            self._read()  # whether or not it can be passed on
        lines = self._tail.decode(errors="replace").splitlines()
        return "\n".join(lines[-_LINES:])

    def close(self) -> None:
        """Close the pipe; what the worker's stderr does not take now is dropped."""
        if self._open:
            self._open = False
            if self._retry is not None:
                self._retry.cancel()
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._read_end)
            os.close(self._read_end)

    def _read(self) -> None:
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
        self._unwritten = write_ready(2, (self._unwritten + data)[-_READ:])
        if self._unwritten and self._loop is not None and self._retry is None:
            self._loop.remove_reader(self._read_end)
            self._retry = self._loop.call_later(_RETRY, self._write_again)

    def _write_again(self) -> None:
        assert self._loop is not None
        self._unwritten = write_ready(2, self._unwritten)
        if self._unwritten:
            self._retry = self._loop.call_later(_RETRY, self._write_again)
        else:
            self._retry = None
            self._loop.add_reader(self._read_end, self.pump)


def write_ready(fd: int, data: bytes) -> bytes:
    """Write as much as does not block; returns the rest. Without a reader, everything counts as written."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    try:
        while data and poll.poll(0):
            data = data[os.write(fd, data[:_PIECE]) :]
    except BlockingIOError:
        return data
    except OSError:  # the worker has no stderr, or nobody reads it
        return b""
    return data
