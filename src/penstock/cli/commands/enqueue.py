"""`penstock enqueue`: enqueue one job, by hand or from a script."""

from __future__ import annotations

import re
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.completing import complete_queue
from penstock.cli.faults import CommandError, not_found
from penstock.cli.session import Command, Session
from penstock.cli.show import emit, say
from penstock.core.errors import ArgumentError, ConfigError, Undecodable, did_you_mean

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.task import Task
    from penstock.client.handle import Handle

_APP = re.compile(r"[\w.]+:[\w.]+\Z")


@click.command("enqueue", cls=Command)
@click.argument("words", metavar="[MODULE:ATTRIBUTE] TASK [ARGUMENTS]", nargs=-1, required=True)
@click.option(
    "--raw", is_flag=True, help="Store ARGUMENTS as they are, unchecked, under any task name; needs --queue."
)
@click.option(
    "--queue",
    "-q",
    metavar="QUEUE",
    shell_complete=complete_queue,
    help="Queue of the job.  [default: the task's queue]",
)
@click.option("--delay", metavar="DURATION", help="Delay before the job may start, e.g. 5m.  [default: 0]")
@click.option("--run-at", metavar="TIMESTAMP", help="Earliest start time, e.g. 2026-11-20T08:30:00Z.")
@click.option(
    "--priority",
    type=int,
    metavar="N",
    help="Priority, -100 to 100; higher starts first.  [default: the task's]",
)
@click.option("--id", "id", metavar="ID", help="Id of the job; refused if it is taken.  [default: generated]")
@click.option(
    "--unique",
    is_flag=True,
    default=None,
    help="Skip the enqueue if an identical job (same task and arguments) is unfinished.",
)
@click.option(
    "--unique-for", metavar="DURATION", help="As --unique, for at most this long after the enqueue, e.g. 10m."
)
@click.option(
    "--unique-key", metavar="KEY", help="As --unique, but jobs of the task with this key are identical."
)
@click.option(
    "--expires",
    metavar="DURATION",
    help="Cancel the job if it has not started this long after the enqueue, e.g. 1h.",
)
@click.option(
    "--timeout",
    metavar="DURATION",
    help="Time limit of one attempt, e.g. 30s, or none.  [default: the task's]",
)
@click.option(
    "--max-attempts", type=int, metavar="N", help="Maximum number of attempts.  [default: the task's]"
)
@click.option(
    "--retention", metavar="DURATION", help="Time to keep the finished job, e.g. 1h.  [default: the task's]"
)
@click.option(
    "--keep-dead",
    metavar="DURATION",
    help="Time to keep the job if it ends dead, e.g. 30d.  [default: the task's]",
)
@click.option(
    "--header", "headers", metavar="NAME=VALUE", multiple=True, help="Header of the job; may be repeated."
)
def command(words: tuple[str, ...], raw: bool, headers: tuple[str, ...], **given: Any) -> None:
    """Enqueue one job.

    ARGUMENTS is JSON: an object for keyword arguments, or an array for positional ones; "-" reads it from
    stdin. Arguments that do not fit the task's signature are refused, and nothing is stored.

    \b
    penstock enqueue tasks:app tasks.send_welcome '{"user_id": 42}' --delay 5m
    penstock enqueue --raw --queue legacy resize '{"path": "a.png"}'
    """
    options = _options(given, headers)
    spec, task, payload = split_words(words, raw)
    handle = _enqueue_raw(spec, task, payload, options) if raw else _enqueue(spec, task, payload, options)
    if Session.current().json:
        emit({"queue": handle.queue, "id": handle.id, "task": task, "existing": handle.existing})
    else:
        say(f"{handle.queue}/{handle.id}" + (" (existing job)" if handle.existing else ""))


def split_words(words: tuple[str, ...], raw: bool) -> tuple[str | None, str, bytes]:
    """Split the arguments into app, task and payload. The app comes first, unless the settings name one."""
    session = Session.current()
    rest = list(words)
    spec = None
    if "app" not in session.options and _APP.match(rest[0]) and len(rest) > 1:
        spec = rest.pop(0)
    if len(rest) > 2:
        raise click.UsageError(f"unexpected argument {rest[2]!r}: put the JSON into quotes")
    if not raw and len(rest) == 1 and _APP.match(rest[0]) and not session.uses_app():
        raise click.UsageError(f"no task: name one after the app, as in `{rest[0]} tasks.send_welcome`")
    text = rest[1] if len(rest) == 2 else "" if raw else "{}"
    payload = sys.stdin.buffer.read() if text == "-" else text.encode("utf-8", "surrogateescape")
    return spec, rest[0], payload


def _options(given: dict[str, Any], headers: tuple[str, ...]) -> dict[str, Any]:
    options = {name: value for name, value in given.items() if value is not None}
    if "unique_for" in options:
        options["unique"] = options.pop("unique_for")
    if "run_at" in options:
        options["run_at"] = _instant(options["run_at"])
    if options.get("timeout") == "none":
        options["timeout"] = None
    if headers:
        pairs = [header.partition("=") for header in headers]
        if wrong := next((name for name, equals, _ in pairs if not equals), None):
            raise click.UsageError(f"--header {wrong!r} has no '=': write NAME=VALUE")
        options["headers"] = {name: value for name, _, value in pairs}
    return options


def _instant(text: str) -> datetime:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"--run-at={text!r} is not a timestamp: write 2026-11-20T08:30:00Z") from None
    if instant.utcoffset() is None:
        raise ConfigError(
            f"--run-at={text!r} has no time zone: write {text}Z for UTC, or an offset, as +01:00"
        )
    return instant


def _enqueue(spec: str | None, name: str, payload: bytes, options: dict[str, Any]) -> Handle[Any]:
    app = Session.current().open_app(spec)
    refuse_memory(app)
    task = find_task(app, name)
    args, kwargs = read_arguments(task, payload)
    try:
        return task.using(**options).enqueue(*args, **kwargs)
    finally:
        app.close()


def find_task(app: App, name: str) -> Task[..., Any]:
    """The task of this name; raises CommandError if the app has none."""
    task = app.tasks.get(name)
    if task is None:
        known = sorted(app.tasks)
        near = (
            did_you_mean(name, known) or f"; its tasks are {', '.join(known)}" if known else "; it has none"
        )
        raise not_found(f"the app has no task {name!r}{near}")
    return task


def read_arguments(task: Task[..., Any], payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Decode the arguments of a call; raises ArgumentError if they do not fit the task."""
    try:
        return task.carried.decode_call(payload)
    except Undecodable as error:
        raise ArgumentError(str(error)) from None


def _enqueue_raw(spec: str | None, name: str, payload: bytes, options: dict[str, Any]) -> Handle[Any]:
    if "queue" not in options:
        raise click.UsageError("--raw needs --queue: raw jobs have no default queue")
    session = Session.current()
    app: App
    if spec is not None or "app" in session.options:
        app = session.open_app(spec)
    else:
        from penstock.app.app import App as MakeApp

        config = session.load().config
        app = MakeApp(config.url, namespace=config.namespace, max_payload=config.max_payload)
    refuse_memory(app)
    try:
        return app.enqueue_raw(options.pop("queue"), payload, name, **options)
    finally:
        app.close()


def refuse_memory(app: App) -> None:
    """Raise CommandError if the store is in memory: its jobs would be lost when this process exits."""
    if app.store_url.startswith("memory:"):
        raise CommandError(
            f"{app.store_url} ends with this process, and its jobs too: use a persistent store"
        )
