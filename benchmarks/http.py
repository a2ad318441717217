"""`penstock serve --lmstfy` beside lmstfy itself on one Redis: `python -m benchmarks.http`.

lmstfy comes from the Go module proxy, and the load is a Go program (`http_load/`), so both need Go. Each
repetition measures both servers one after the other, in turns; the table shows medians.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from benchmarks.machine import cpu_seconds, describe, memory_of
from benchmarks.server import Server, describe_redis

_HERE = Path(__file__).resolve().parent
LMSTFY = "github.com/bitleak/lmstfy@v1.0.15"
_TOKEN = "the-token-of-the-benchmarks"
LMSTFY_CONFIG = """
Host = "127.0.0.1"
Port = {port}
AdminHost = "127.0.0.1"
AdminPort = {admin_port}
LogLevel = "error"
[AdminRedis]
Addr = "{redis}"
[Pool.default]
Addr = "{redis}"
"""
_SIDES = ("lmstfy", "penstock")

Figures = dict[str, float]
#: Measures one server: its port, the load program, a scale, and the server's process.
Measure = Callable[[int, Path, float, int], dict[str, Figures]]


# --- programs -----------------------------------------------------------------------------------


def run_go(*arguments: str, cwd: Path) -> str:
    """Run the Go command; returns its output. Raises ClickException if it fails."""
    ran = subprocess.run(["go", *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise click.ClickException(f"go {arguments[0]} failed: {ran.stderr[-300:]}")
    return ran.stdout


def build(folder: Path) -> tuple[Path, Path]:
    """Build lmstfy and the load, unless they are there: the paths of both programs."""
    folder.mkdir(parents=True, exist_ok=True)
    lmstfy, load = folder / "lmstfy", folder / "http_load"
    run_go("build", "-buildvcs=false", "-o", str(load), ".", cwd=_HERE / "http_load")
    if not lmstfy.exists():
        source = folder / "source"
        found = json.loads(run_go("mod", "download", "-json", LMSTFY, cwd=folder))
        shutil.copytree(found["Dir"], source, copy_function=shutil.copyfile)
        for path in [source, *source.rglob("*")]:
            path.chmod(path.stat().st_mode | 0o200)
        run_go("build", "-mod=mod", "-buildvcs=false", "-o", str(lmstfy), "./server", cwd=source)
    return lmstfy, load


def _free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


@contextlib.contextmanager
def _running(command: list[str], ports: tuple[int, int], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    env = {**os.environ, "PYTHONPATH": str(_HERE.parent / "src")}
    with (folder / f"log.{ports[0]}").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 30
        while not all(map(_answers, ports)):
            if process.poll() is not None or time.monotonic() > deadline:
                said = (folder / f"log.{ports[0]}").read_text(errors="replace")
                raise click.ClickException(f"{command[0]} does not listen: {said[-300:]}")
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:  # lmstfy waits for its long polls
            process.kill()
            process.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def served(side: str, lmstfy: Path, redis: Server, folder: Path) -> Iterator[tuple[int, int]]:
    """Run one of the servers with a token of its own: its port and its process."""
    port, admin_port = ports = _free_ports()
    if side == "lmstfy":
        config = folder / f"lmstfy.{port}.toml"
        config.write_text(
            LMSTFY_CONFIG.format(port=port, admin_port=admin_port, redis=f"127.0.0.1:{redis.port}")
        )
        command = [str(lmstfy), "-c", str(config), "-p", str(folder / f"pid.{port}")]
    else:
        command = [sys.executable, "-m", "penstock", "--url", redis.url, "serve", "--lmstfy"]
        command += ["--port", str(port), "--admin-port", str(admin_port)]
    with _running(command, ports, folder) as process:
        with socket.create_connection(("127.0.0.1", admin_port)) as admin:
            path = f"/token/ns?description=benchmark&token={_TOKEN}"
            admin.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
            if b" 201 " not in admin.recv(4_096):
                raise click.ClickException(f"{side} made no token")
        yield port, process.pid


# --- measures -----------------------------------------------------------------------------------


def _load(program: Path, port: int, mode: str, connections: int, requests: int, *more: str) -> Figures:
    command = [str(program), "-port", str(port), "-token", _TOKEN, "-mode", mode]
    command += ["-connections", str(connections), "-requests", str(requests), *more]
    found: Figures = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    if found["failed"]:
        raise click.ClickException(f"{mode}: {found['failed']:.0f} requests failed")
    return found


def single_requests(port: int, load: Path, scale: float, pid: int) -> dict[str, Figures]:
    """Publish, consume and acknowledge one job with a request each."""
    found = {}
    for connections, requests in ((1, int(4_000 * scale)), (64, int(32_000 * scale))):
        queue = f"c{connections}"
        for mode in ("publish", "consume"):
            found[f"{mode}, {connections} conn"] = _load(
                load, port, mode, connections, requests, "-queue", queue
            )
        _load(load, port, "publish", 64, requests, "-queue", f"{queue}a")
        found[f"ack, {connections} conn"] = _load(
            load, port, "ack", connections, requests, "-queue", f"{queue}a"
        )
    return found


def many_jobs(port: int, load: Path, scale: float, pid: int) -> dict[str, Figures]:
    """Publish 64 jobs with a request (bulk), consume 100 with one (batch)."""
    found = {}
    for connections, requests in ((1, int(300 * scale)), (16, int(1_600 * scale))):
        queue = f"b{connections}"
        found[f"bulk of 64, {connections} conn"] = _load(
            load, port, "bulk", connections, requests, "-queue", queue
        )
        batches = requests * 64 // 100 // connections * connections
        found[f"batch of 100, {connections} conn"] = _load(
            load, port, "batch", connections, batches, "-queue", queue
        )
    return found


def _allow_open_files(number: int) -> None:
    """Raise the limit of open connections, which the load inherits; each server raises its own limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < number:
        raise click.ClickException(f"{number} open files are needed (ulimit -Hn: {hard}): use --scale")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, number), hard))


def idle_polls(port: int, load: Path, scale: float, pid: int) -> dict[str, Figures]:
    """Idle long polls: the server's memory and CPU, and the time from a publish to the answer of a poll."""
    connections, seconds = int(5_000 * scale), min(5.0, max(0.5, 5 * scale))
    _allow_open_files(connections + 200)
    before = memory_of(pid).rss
    command = [str(load), "-port", str(port), "-token", _TOKEN, "-mode", "polls", "-hold", "3s"]
    command += ["-connections", str(connections), "-requests", "300"]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stderr.readline()
        used = cpu_seconds([pid])
        time.sleep(seconds)
        cpu = (cpu_seconds([pid]) - used) / seconds
        memory = memory_of(pid).rss - before
        process.stdin.write("\n")
        process.stdin.flush()
        found: Figures = json.loads(process.stdout.read())
    found |= {"cpu_percent": 100 * cpu, "kb_per_poll": 1_000 * memory / connections}
    return {f"wake-up among {connections} polls": found}


def due_jobs(port: int, load: Path, scale: float, pid: int) -> dict[str, Figures]:
    """Jobs that become due while 16 requests wait for 100 each: how late each is delivered."""
    jobs = int(10_000 * scale)
    return {f"{jobs} due jobs": _load(load, port, "due", 16, jobs, "-queue", "due")}


MEASURES: dict[str, Measure] = {
    "single": single_requests,
    "many": many_jobs,
    "polls": idle_polls,
    "due": due_jobs,
}


# --- the table ----------------------------------------------------------------------------------


@click.command()
@click.option("--only", default=",".join(MEASURES), show_default=True, help="Groups, joined by commas.")
@click.option("--reps", default=3, show_default=True, help="Number of repetitions; medians are printed.")
@click.option("--scale", default=1.0, show_default=True, help="Multiplies the numbers of requests.")
@click.option("--build-dir", type=click.Path(path_type=Path), help="Keep the built programs here.")
def main(only: str, reps: int, scale: float, build_dir: Path | None) -> None:
    """Print figures of both servers, and the ratio of Penstock to lmstfy."""
    if shutil.which("go") is None:
        raise click.ClickException("Go is not on PATH")
    print(describe(), describe_redis(), sep="\n")
    with tempfile.TemporaryDirectory(prefix="penstock-http-") as place:
        folder = Path(place)
        lmstfy, load = build(build_dir or folder / "built")
        for name in only.split(","):
            found: dict[str, list[dict[str, Figures]]] = {side: [] for side in _SIDES}
            for n in range(reps):
                for side in _SIDES if n % 2 == 0 else reversed(_SIDES):
                    found[side].append(_measure(MEASURES[name], side, lmstfy, load, folder, scale))
            _show(found)


def _measure(
    measure: Measure, side: str, lmstfy: Path, load: Path, folder: Path, scale: float
) -> dict[str, Figures]:
    with tempfile.TemporaryDirectory(dir=folder) as data:
        redis = Server(Path(data), appendonly=True)
        try:
            with served(side, lmstfy, redis, folder) as (port, pid):
                return measure(port, load, scale, pid)
        finally:
            redis.close()


def _show(found: dict[str, list[dict[str, Figures]]]) -> None:
    for title in found["lmstfy"][0]:
        print(f"\n{title}")
        for figure in found["lmstfy"][0][title]:
            theirs, ours = (_median(found[side], title, figure) for side in _SIDES)
            if figure != "failed":
                ratio = f"{ours / theirs:8.2f} ×" if theirs else ""
                print(f"  {figure:18} lmstfy {theirs:10.2f}   penstock {ours:10.2f} {ratio}")


def _median(runs: list[dict[str, Figures]], title: str, figure: str) -> float:
    values: list[Any] = [run[title][figure] for run in runs]
    return statistics.median(values)


if __name__ == "__main__":
    main()
