"""Tasks that the tests of the process pool run in child processes."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import msgspec

from penstock import App
from penstock.app.attempt import current_job
from penstock.core.job import Job, RawJob
from penstock.errors import Cancel, Discard, Retry, Snooze
from penstock.worker.pools.host import Host

app = App("memory://")


@app.on_startup
async def begin(app: App) -> None:
    app.state.began_in = os.getpid()


@app.on_shutdown
def finish() -> None:
    if path := os.environ.get("TEST_FINISHED"):
        with open(path, "a") as file:
            file.write(f"{os.getpid()}\n")


@app.task(run_in="process")
def add(a: int, b: int = 1) -> int:
    return a + b


@app.task(run_in="process")
def nothing() -> None:
    return None


@app.task(run_in="process")
def pid() -> int:
    return os.getpid()


@app.task(run_in="process")
def nap(seconds: float) -> tuple[int, float, float]:
    """Sleep; returns the pid and the monotonic instants of start and end."""
    began = time.monotonic()
    time.sleep(seconds)
    return os.getpid(), began, time.monotonic()


@app.task(run_in="process")
def nap_until(path: str) -> tuple[int, float, float]:
    """Sleep until there is such a file; returns what `nap` does."""
    began = time.monotonic()
    while not os.path.exists(path):
        time.sleep(0.002)
    return os.getpid(), began, time.monotonic()


@app.task(run_in="process")
def inheritable() -> list[int]:
    """The descriptors that a program started here would get, beyond the standard ones."""
    found = []
    for fd in range(3, 256):
        try:
            if os.get_inheritable(fd):
                found.append(fd)
        except OSError:
            continue
    return found


_kept: list[bytes] = []


@app.task(run_in="process")
def keep(megabytes: int) -> int:
    """As a leak does."""
    _kept.append(b"x" * (megabytes << 20))
    return os.getpid()


@app.task(run_in="process")
def lengthen(text: str, times: int) -> str:
    return text * times


@app.task(run_in="process")
def facts() -> dict[str, Any]:
    job = current_job()
    remaining = job.remaining()
    return {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "attempt": job.attempt,
        "remaining": None if remaining is None else remaining > 0,
        "state": app.state.began_in == os.getpid(),
        "argv": sys.argv[0],
    }


@app.task(run_in="process")
def fail(how: str) -> None:
    match how:
        case "value":
            raise ValueError("it is wrong")
        case "retry":
            raise Retry("not yet", delay=1.5)
        case "snooze":
            raise Snooze(timedelta(minutes=2))
        case "discard":
            raise Discard("never again")
        case "cancel":
            raise Cancel("not wanted")
        case "exit":
            sys.exit(3)
        case "unshowable":
            raise Unshowable


class Unshowable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def soon(attempt: int, error: BaseException, job: Job) -> float:
    assert isinstance(error, ValueError)
    return 7.0 * attempt


@app.task(run_in="process", retry=soon)
def fail_with_own_rule() -> None:
    raise ValueError("it is wrong")


@app.task(run_in="process")
def die(how: str) -> None:
    match how:
        case "segv":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang up":
            os.closerange(3, 65_536)  # its number is that which it has in a worker, where it may be high
            time.sleep(60)


@app.task(run_in="process")
def hang(started: str, swallow: bool = False) -> None:
    """Report by a file, then never come back."""
    with open(started, "w") as file:
        file.write(str(os.getpid()))
    while True:
        time.sleep(60)


@app.task(run_in="process")
def pid_when(path: str) -> int:
    """The pid, once this file exists."""
    while not os.path.exists(path):
        time.sleep(0.002)
    return os.getpid()


@app.task(run_in="process")
def hang_with_helper(started: str) -> None:
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    hang.function(f"{started}.own")
    del helper


@app.task(run_in="process")
def start_helper() -> int:
    """Start a program and leave it behind."""
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False).pid


@app.task(run_in="process")
def fork_and_die(pid_file: str) -> None:
    """A fork shares the socket to the worker: its end must be seen without the socket's."""
    reads, writes = os.pipe()
    if (pid := os.fork()) == 0:
        os.setsid()  # out of reach of the kill of its parent's group
        os.close(writes)
        while True:
            signal.pause()
    os.close(writes)
    os.read(reads, 1)  # until it has done so
    with open(pid_file, "w") as file:
        file.write(str(pid))
    os._exit(4)


@app.task(run_in="process")
def noisy(n: int) -> str:
    print("x" * n)
    os.write(1, b"\x00\xff raw \n" * 10)
    print("and to stderr", file=sys.stderr)
    return "quiet"


@app.task(run_in="process")
def signals_reach(number: int) -> str:
    os.kill(os.getpid(), number)
    child = subprocess.run(
        [sys.executable, "-c", f"import signal; print(signal.getsignal({number}) is signal.SIG_IGN)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return f"alive; programs ignore it: {child.stdout.strip()}"


@app.task(run_in="process")
def open_sockets() -> list[str]:
    found = []
    for fd in range(3, 256):
        try:
            socket.socket(fileno=os.dup(fd)).close()
        except OSError:
            continue
        found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return found


@app.task(run_in="process")
def tell(n: int) -> str:
    for i in range(n):
        current_job().progress(i, of=n)
    current_job().progress(n, of=n, note="done")
    return "told"


@app.handler(queue="json", run_in="process")
def read(job: RawJob) -> Any:
    return job.json()


@app.handler(queue="raw", run_in="process")
def raw(job: RawJob) -> str:
    return f"{job.task} {job.attempt} {job.payload!r}"


@app.task(run_in="process")
def die_with_words(how: str, words: str) -> None:
    """Write to stderr, by Python and below it, then die."""
    print(words, file=sys.stderr)
    os.write(2, b"and by a library\n")
    die.function(how)


@app.task(run_in="process")
def rank() -> tuple[int, list[int]]:
    return os.nice(0), sorted(os.sched_getaffinity(0))


@app.task(run_in="process")
def exhaust(limit: int) -> int:
    """Take more memory than this process may have."""
    old = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit, old[1]))
    try:
        return len(bytearray(4 * limit))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, old)


@app.task(run_in="process", timeout=0.3)
def never_return() -> None:
    """A call in C that no exception reaches."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.CDLL(None).pause()


@app.task(run_in="process")
def fork_beside_threads() -> int:
    """Fork while another thread of the child runs, as multiprocessing does."""
    over = threading.Event()
    beside = threading.Thread(target=over.wait)
    beside.start()
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    over.set()
    beside.join()
    return status


@app.task(run_in="process")
def scribble(where: str) -> str:
    """Write to what this process shares with its worker, as a task does that takes it for its own."""
    host = inspect.currentframe()
    while host is not None and not isinstance(host.f_locals.get("self"), Host):
        host = host.f_back
    assert host is not None
    here: Host = host.f_locals["self"]
    number = host.f_locals["order"].number
    fds = [int(name) for name in os.listdir("/proc/self/fd")]
    sockets = [fd for fd in fds if _target(fd).startswith("socket:")]
    if where == "files":
        return str(sum("penstock-" in _target(fd) for fd in fds))
    if where == "close":
        here._send.__self__._socket.close()  # type: ignore[attr-defined]
        return "closed"
    if where == "read":
        for fd in sockets:
            os.set_blocking(fd, False)
            with contextlib.suppress(OSError):
                os.read(fd, 3)
            os.set_blocking(fd, True)
        return "read"
    if where == "page":
        here._page._map[:] = b"\x41" * len(here._page._map)
    elif where == "socket":
        for fd in sockets:
            os.write(fd, b"hello, is there anybody?")
    else:
        body = {
            "message": b"\x91\xa5Never",
            "outcome": msgspec.msgpack.encode(["Failed", number, 0.0, 0.0, "Never", {}]),
            "other call": msgspec.msgpack.encode(["Refused", number + 1_000]),
            "place": msgspec.msgpack.encode(["FunctionReturned", number, 0.0, 0.0, 0.0, None, [3, 9]]),
        }[where]
        size = len(body)
        here._send.__self__._socket.sendall(struct.pack(">II", size, size ^ 0xFFFFFFFF) + body)  # type: ignore[attr-defined]
    time.sleep(60)  # the worker kills this process
    return "it goes on"


def _target(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # the descriptor of the listing itself
        return ""
