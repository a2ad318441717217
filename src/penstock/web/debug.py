"""What a running server does and holds: stacks, objects, a CPU profile. For operators on the same machine."""

from __future__ import annotations

import asyncio
import cProfile
import gc
import io
import ipaddress
import pstats
from collections import Counter
from collections.abc import Awaitable, Callable

from penstock.core.stacks import frames_text, task_frames, thread_frames
from penstock.web.exchange import Exchange

_MOST_LINES = 80
#: The longest profile (s).
_LONGEST = 60.0


class DebugRoutes:
    """The profiles by their names, as text."""

    def __init__(self) -> None:
        self._profiling = False
        self.profiles: dict[str, Callable[[float], Awaitable[str]]] = {
            "goroutine": self._stacks,
            "heap": self._heap,
            "profile": self._profile,
        }

    def index(self) -> str:
        """The list of profiles."""
        return "\n".join(["profiles:", *(f"  {name}" for name in self.profiles), ""])

    async def _stacks(self, _: float) -> str:
        """The stacks of all tasks and threads."""
        text = io.StringIO()
        tasks = asyncio.all_tasks()
        text.write(f"{len(tasks)} tasks\n\n")
        for task in sorted(tasks, key=asyncio.Task.get_name):
            text.write(f"task {task.get_name()}\n{frames_text(task_frames(task))}\n")
        for name, frames in thread_frames().values():
            text.write(f"thread {name}\n{frames_text(frames)}\n")
        return text.getvalue()

    async def _heap(self, _: float) -> str:
        """The number of objects by type; those that the garbage collector does not track are missing."""
        found = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())
        lines = [f"{number:>10} {name}" for name, number in found.most_common(_MOST_LINES)]
        return "\n".join([f"{sum(found.values())} objects, collections: {gc.get_count()}", *lines, ""])

    async def _profile(self, seconds: float) -> str:
        """The functions of this event loop's thread by time, over some seconds."""
        if self._profiling:
            return "another profile is running\n"
        profile = cProfile.Profile()
        self._profiling = True
        try:
            try:
                profile.enable()
            except ValueError as error:  # another tool profiles this process
                return f"{error}\n"
            await asyncio.sleep(min(_LONGEST, seconds))
            profile.disable()
        finally:
            self._profiling = False
        text = io.StringIO()
        pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(_MOST_LINES)
        return text.getvalue()


def comes_from_here(exchange: Exchange) -> bool:
    """Whether a request comes from this machine, and not by way of a proxy on it."""
    if exchange.header(b"x-forwarded-for") is not None or exchange.header(b"forwarded") is not None:
        return False
    try:
        return not exchange.address or ipaddress.ip_address(exchange.address).is_loopback
    except ValueError:
        return False
