"""Servers of the command line: their sockets, and what runs until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.faults import CommandError
from penstock.core.errors import ConfigError, PenstockError
from penstock.web.process_link import ProcessLink, Siblings
from penstock.web.processes import ServerProcesses
from penstock.web.sockets import UnixSocket, bind_tcp
from penstock.web.tls import Tls

if TYPE_CHECKING:
    from penstock.dialects.lmstfy.service import LmstfyService


_log = logging.getLogger("penstock.web")

DATA, ADMIN = "data", "admin"
#: Thresholds of the garbage collector: requests leave no cycles, and Python's 700 objects are a few requests.
_COLLECT_AFTER = (20_000, 10, 10)


@dataclass(frozen=True)
class ListenAddress:
    """Where a listener listens: at a host and port, or at `path`."""

    host: str = "127.0.0.1"
    port: int = 0
    path: Path | None = None
    mode: int = 0o600

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.path is None else str(self.path)


@dataclass
class Listening:
    """The listening sockets of all processes, by listener. `addresses`: with the ports that they have got."""

    processes: list[dict[str, list[socket.socket]]]
    addresses: dict[str, ListenAddress]
    files: list[UnixSocket] = field(default_factory=list)

    @classmethod
    def at(cls, addresses: Mapping[str, ListenAddress], processes: int = 1) -> Listening:
        """Listen at these addresses. Raises OSError or ConfigError."""
        made = cls([{} for _ in range(processes)], dict(addresses))
        try:
            for name, address in addresses.items():
                made._listen(name, address)
        except BaseException:  # boundary: nothing stays open after an error
            made.close()
            raise
        return made

    def _listen(self, name: str, address: ListenAddress) -> None:
        if address.path is not None:
            file = UnixSocket(address.path, address.mode)
            self.files.append(file)
            copies = [[file.socket] for _ in self.processes]
        else:
            copies = bind_tcp(address.host, address.port, len(self.processes) if name == DATA else 1)
            port = copies[0][0].getsockname()[1]
            self.addresses[name] = ListenAddress(address.host, port)
            copies = copies if name == DATA else copies * len(self.processes)
        for process, sockets in zip(self.processes, copies, strict=True):
            process[name] = sockets

    def close(self) -> None:
        """Close the sockets, and remove the files of those that have one."""
        for process in self.processes:
            for sockets in process.values():
                for one in sockets:
                    one.close()
        for file in self.files:
            file.remove()


def supervise(listening: Listening, *, grace: float, on_ready: Callable[[], None]) -> int:
    """Run this command line in several processes on these sockets; returns the exit code."""
    command = [sys.executable, "-m", "penstock", *sys.argv[1:]]
    processes = ServerProcesses(command, listening.processes, grace=grace, on_ready=on_ready)
    try:
        return asyncio.run(processes.run())
    finally:
        listening.close()


async def serve(
    service: LmstfyService,
    sockets: Mapping[str, Sequence[socket.socket]],
    *,
    tls: Tls | None,
    grace: float,
    reload: Callable[[], list[str]],
    on_ready: Callable[[], None],
    control: socket.socket | None = None,
) -> int:
    """Serve in this process until SIGTERM or SIGINT, or until the supervisor at `control` is gone.

    `reload` reads the settings again and applies them; it returns what needs a restart.
    """
    _allow_open_files()
    gc.set_threshold(*_COLLECT_AFTER)
    gc.collect()
    gc.freeze()  # what is loaded now stays: full collections skip it
    stopping, operations = asyncio.Event(), service.operations
    link = None if control is None else ProcessLink(control, operations.acts)
    operations.siblings = Siblings(operations.acts, link)
    tasks: set[asyncio.Task[Any]] = set()

    async def reloaded() -> list[str]:
        certificate = None if tls is None else tls.read()  # nothing is applied if either is wrong
        notes = reload()
        if tls is not None and certificate is not None:
            tls.use(certificate)
        _log.info("reloaded%s", "".join(f"; {note}" for note in notes))
        return notes

    operations.reload = reloaded
    _handle_signals(stopping, reloaded, tasks)
    await service.take_over()
    service.start_timers()
    await service.data_server.accept_on(sockets[DATA], tls)
    await service.admin_server.accept_on(sockets[ADMIN], tls)
    if link is not None:
        await link.connect()
        following = asyncio.ensure_future(link.run())
        following.add_done_callback(lambda _: stopping.set())
        operations.adopt(await link.ask("ready"))
    on_ready()
    await stopping.wait()
    await service.stop(grace)
    if link is not None:
        link.close()
    return 0


def _handle_signals(
    stopping: asyncio.Event, reloaded: Callable[[], Any], tasks: set[asyncio.Task[Any]]
) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if stopping.is_set():  # the second signal
            raise SystemExit(1)
        stopping.set()

    async def reload() -> None:
        try:
            await reloaded()
        except (PenstockError, OSError) as error:
            _log.error("reload: %s; the old settings stay", error)

    def start_reload() -> None:
        task = loop.create_task(reload())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, start_reload)


def check_processes(count: int, url: str) -> None:
    """Refuse several processes on a store that each has for itself. Raises ConfigError."""
    if count > 1 and url.startswith("memory:"):
        raise ConfigError(
            f"--processes {count} needs a store that processes share: "
            "memory:// belongs to one; use sqlite:///jobs.db or Redis"
        )


def _allow_open_files() -> None:
    """Raise the soft limit of open files to the hard one: each connection is an open file."""
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS refuses an unlimited number
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


#: Without --port: the first of these that is free.
_PORTS = range(8080, 8090)


def listen_somewhere(host: str, port: int | None) -> list[socket.socket]:
    """Listen on this port, or without one on the first of some that is free. Raises CommandError."""
    from penstock.web.sockets import bind_tcp

    ports = [port] if port is not None else [*_PORTS]
    why: str | None = None
    for one in ports:
        try:
            (sockets,) = bind_tcp(host, one)
            return sockets
        except OSError as error:
            why = error.strerror
            if error.errno != errno.EADDRINUSE:
                break
    tried = f"{host}:{ports[0]}" if len(ports) == 1 else f"{host}, ports {ports[0]} to {ports[-1]}"
    raise CommandError(f"cannot listen on {tried}: {why}; name another port, or --port 0 for a free one")


def address_of(host: str, listener: socket.socket) -> str:
    """The URL of what listens."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}/"


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Treat TERM like Ctrl-C: what was started ends."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
