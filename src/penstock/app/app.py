"""The App: the tasks of an application and the store of their jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from penstock.app.app_settings import AppSettings, number_setting
from penstock.app.queue import QueueDefaults, StoredQueue, check_defaults
from penstock.app.registry import Registry
from penstock.app.store_support import check_support
from penstock.app.task import Limits, Task
from penstock.app.user_modules import check_include, import_module
from penstock.client.backpressure import FULL_TIMEOUT
from penstock.client.client import Client
from penstock.client.handle import Handle
from penstock.client.job_call import JobCall, Template
from penstock.client.middleware import MiddlewareStack
from penstock.client.options import (
    DefaultOptions,
    RawOptions,
    override,
    override_call,
    refuse_unknown,
)
from penstock.client.outbox import Outbox
from penstock.codec import ANY_RESULT, MAX_BYTES
from penstock.core.errors import ArgumentError, ConfigError, PenstockError
from penstock.core.events import EventBus
from penstock.core.formats import Duration, milliseconds
from penstock.core.ids import check_namespace, check_queue, check_task_name
from penstock.core.job import DEAD_KEPT, Job
from penstock.core.portable import in_process
from penstock.core.running import store_guards
from penstock.core.text import plain
from penstock.stores.connect import check_url, connect
from penstock.stores.contract import SignalStatus, Store
from penstock.stores.encrypted import encrypted_store

if TYPE_CHECKING:
    from penstock.app.take import Take
    from penstock.app.taken import Taken
    from penstock.client.results import AsCompleted

P = ParamSpec("P")
R = TypeVar("R")

#: Shortest lease (ms): a heartbeat follows every third of a lease, and must reach the store in time.
_SHORTEST_LEASE = 100
_OWN_OPTIONS = {"url", "namespace", "name", "max_payload", "max_result", "outbox", "full_timeout", "store"}
_OWN_OPTIONS |= {"key", "encrypt", "key_required", "include", "queues"}


@in_process("import the module of the app there, or make the app there")
class App(Registry):
    """The tasks of an application, and the store of their jobs. Connects at the first enqueue.

    Works across threads, event loops and forks. Options:

    - `url`: the store; without one, `sqlite:///jobs.db`. `store`: a store object instead of a URL.
    - `namespace`: isolates this app from others on the same store.
    - `max_payload`, `max_result`: maximum bytes of one job's arguments and of its result.
    - `outbox`: how many new jobs may wait in memory while the store is unreachable (default 0). They are lost
      if the process dies.
    - `full_timeout`: how long an enqueue waits for room in a full queue whose rule is to wait (default 30 s).
    - `key`: encrypts the contents of jobs: 32 bytes, or those as base64 text. With several keys the first
      encrypts and all decrypt. See docs/encryption.md.
    - `encrypt=False`: only sign. `key_required`: refuse unencrypted jobs.
    - `queues`: limits of queues, which workers store when they start. See docs/limits.md.
    - `include`: names of modules with tasks, which workers import when they start. See docs/projects.md.

    All other options are defaults for the app's tasks; `retention` applies to tasks with a result. Missing
    options are read from the environment or penstock.toml.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        name: str = "",
        max_payload: int | str | None = None,
        max_result: int | str | None = None,
        outbox: int | None = None,
        full_timeout: Duration | None = None,
        store: Store | None = None,
        key: bytes | str | Sequence[bytes | str] | None = None,
        encrypt: bool | None = None,
        key_required: bool | None = None,
        include: Sequence[str] = (),
        queues: Mapping[str, QueueDefaults] | None = None,
        **defaults: Unpack[DefaultOptions],
    ) -> None:
        refuse_unknown(defaults, DefaultOptions.__optional_keys__ | _OWN_OPTIONS, who="App()", place="app")
        settings = AppSettings()
        self.url: str = settings.or_else(url, "url", "sqlite:///jobs.db")
        self.namespace = check_namespace(settings.or_else(namespace, "namespace", ""))
        self.name = name
        self.include = check_include(include)
        #: The limits of queues in code; None: this app says nothing of them.
        self.queue_defaults = check_defaults(queues)
        self._passed_store = store
        #: Free for the application: hooks fill it, attempts read it.
        self.state = SimpleNamespace()
        #: "module:attribute" of this app; set by the code that loaded it.
        self.spec: str | None = None
        self._keep_dead: int = settings.or_else(None, "keep_dead", DEAD_KEPT)
        if store is None:
            self.url = check_url(self.url)
        payload = number_setting("max_payload", settings.or_else(max_payload, "max_payload", MAX_BYTES))
        result = number_setting("max_result", settings.or_else(max_result, "max_result", payload))
        room = number_setting("outbox", settings.or_else(outbox, "outbox", 0))
        wait_ms = settings.or_else(
            None if full_timeout is None else milliseconds(full_timeout, what="full_timeout"),
            "full_timeout",
            FULL_TIMEOUT,
        )
        self._cipher = settings.cipher(key, encrypt, key_required)
        self._imported = not self.include
        middleware, events = MiddlewareStack(), EventBus()
        super().__init__(
            Client(lambda: self._made_store(store), middleware, events, room, wait_ms),
            middleware,
            events,
            override(settings.options(), defaults, who="App()"),
            Limits(payload, result),
        )
        if store is not None:
            self._client.use_store(self._made_store(store))

    def import_tasks(self) -> None:
        """Import the modules of `include`, once. Workers and the command line do this when they start.

        A producer needs it only to find a task by name: `handle(task="shop.tasks.send")`, `take` and
        `enqueue_raw` call it. Raises ConfigError for a module that does not exist, AppBroken for one that
        fails.
        """
        if self._imported:
            return
        for name in self.include:
            self._refuse_foreign_tasks(import_module(name))
        self._imported = True

    def _task_named(self, name: str) -> Task[..., Any] | None:
        if name and name not in self.tasks:
            self.import_tasks()
        return self.tasks.get(name)

    def _refuse_foreign_tasks(self, module: ModuleType) -> None:
        """Raise ConfigError if all tasks of an included module are tasks of another App object."""
        here, found = module.__name__, list(vars(module).values())
        tasks = [task for task in found if isinstance(task, Task) and task.function.__module__ == here]
        if tasks and not any(self.tasks.get(task.name) is task for task in tasks):
            raise ConfigError(
                f"App(include=...): the tasks of {here!r} belong to another App object. If the file of this "
                "app runs as a script, importing it makes a second one: put the app into a module of its own"
            )

    @property
    def store(self) -> Store:
        """The store; made at its first use, opened by its first call."""
        return self._client.store

    def use_store(self, store: Store) -> Store:
        """Keep jobs in this store from now on; returns the previous store, which stays open. For tests."""
        self._check_support(store)
        before = self._client.store
        self._client.use_store(store)
        return before

    def swap_store(self, store: Store | None) -> Store | None:
        """Like `use_store`, but makes no store: None stands for the app's own, not made yet. For tests."""
        return self._client.swap_store(store)

    @property
    def connect_url(self) -> str | None:
        """The URL for other processes to connect to; None if the store was passed in as an object."""
        return self.url if self._passed_store is None else None

    @property
    def store_url(self) -> str:
        """The URL of the store, without secrets."""
        return self.store.url

    def enqueue_many(self, jobs: Iterable[JobCall[R]]) -> list[Handle[R]]:
        """Store many jobs, made by `task.job(...)`, in one step per 10 000; returns their handles in order.

        If some jobs cannot be stored, the others are, and EnqueueManyError has the other handles and the
        errors by index. If the store fails before anything was stored, its own error is raised.
        """
        return self._client.enqueue_many(jobs)

    async def aenqueue_many(self, jobs: Iterable[JobCall[R]]) -> list[Handle[R]]:
        """Like `enqueue_many`, without blocking the event loop."""
        return await self._client.aenqueue_many(jobs)

    def enqueue_raw(
        self, queue: str, payload: bytes, task: str = "", **options: Unpack[RawOptions]
    ) -> Handle[Any]:
        """Store a job with any bytes as payload, for a raw handler or a worker in another language.

        Options are those of a call; missing ones are taken from the queue's handler, if it is registered
        here.
        """
        return self._client.enqueue(self.raw_job(queue, payload, task, **options))

    async def aenqueue_raw(
        self, queue: str, payload: bytes, task: str = "", **options: Unpack[RawOptions]
    ) -> Handle[Any]:
        """Like `enqueue_raw`, without blocking the event loop."""
        return await self._client.aenqueue(self.raw_job(queue, payload, task, **options))

    def raw_job(
        self, queue: str, payload: bytes, task: str = "", **options: Unpack[RawOptions]
    ) -> JobCall[Any]:
        """Make a raw job for `enqueue_many`, checked now and stored then."""
        who = "enqueue_raw()"
        if not isinstance(payload, (bytes, bytearray, memoryview)):
            raise ArgumentError(f"{who}: the payload is bytes, not {payload!r:.100}")
        if len(payload) > self._limits.payload:
            raise ArgumentError(
                f"{who}: the payload takes {len(payload):,} bytes; the limit is {self._limits.payload:,}. "
                "Store the data elsewhere and pass its path or key, or raise the limit with "
                "App(max_payload=...)"
            )
        queue = check_queue(queue)
        self.import_tasks()
        handler = self.handlers.get(queue)
        base, codec = (handler.options, handler.result) if handler else (self._defaults, ANY_RESULT)
        chosen = override_call(base, {**options, "queue": queue}, who=who)
        if chosen.unique is not None:
            chosen.unique.check(None)
        name = check_task_name(task) if task != "" else ""
        known = self.tasks.get(name)
        identity = "" if known is None else known.identity
        template = Template(name, chosen, codec, identity=identity)
        template.client = self._client
        return JobCall(template, bytes(payload), plain(options.get("id", "")))

    def signal(
        self,
        name: str,
        *,
        key: str | int | None = None,
        data: Any = None,
        flow: str | None = None,
        keep: Duration | None = None,
        most: int | None = None,
    ) -> SignalStatus:
        """Send a signal to a flow that waits for it, or store it until a flow does.

        - The first signal with a name, key and flow stays; later ones change nothing (EXISTS).
        - `flow`: the id of the job that the signal is for; None: the first that waits.
        - A stored signal is kept for `keep` (default 7d), at most `most` of them (default 10 000).

        Raises TooManySignals, or ArgumentError for data that cannot be stored, or that does not fit what a
        waiting flow takes (`wait_for(..., of=...)`); then nothing is sent.
        """
        from penstock.client.signals import sent, signal_of  # few processes send signals
        from penstock.stores.signal_check import check_signal_sync

        one = signal_of(name, key, data, flow, keep, most)
        check_signal_sync(self.store, one)
        return sent(one, self.store.sync.send_signals([one])[0])

    async def asignal(
        self,
        name: str,
        *,
        key: str | int | None = None,
        data: Any = None,
        flow: str | None = None,
        keep: Duration | None = None,
        most: int | None = None,
    ) -> SignalStatus:
        """Like `signal`, without blocking the event loop."""
        from penstock.client.signals import sent, signal_of
        from penstock.stores.signal_check import check_signal

        one = signal_of(name, key, data, flow, keep, most)
        await check_signal(self.store, one)
        return sent(one, (await self.store.send_signals([one]))[0])

    @overload
    def handle(self, id: str, queue: str | None = None, *, task: Task[P, R]) -> Handle[R]: ...
    @overload
    def handle(self, id: str, queue: str | None = None, *, task: str | None = None) -> Handle[Any]: ...
    def handle(self, id: str, queue: str | None = None, *, task: Any = None) -> Handle[Any]:
        """A handle for a job by its id.

        With a `queue`, or a task of this app (then in that task's queue), the store is not asked whether the
        job exists. With neither, all queues are searched: raises JobNotFound if none has the job, and
        ConfigError if several have one.

        With its task the result has the task's type, otherwise it is plain JSON. A search finds the task.
        """
        return self._known_handle(id, queue, task) or self._found_handle(self._client.find(id), task)

    @overload
    async def ahandle(self, id: str, queue: str | None = None, *, task: Task[P, R]) -> Handle[R]: ...
    @overload
    async def ahandle(self, id: str, queue: str | None = None, *, task: str | None = None) -> Handle[Any]: ...
    async def ahandle(self, id: str, queue: str | None = None, *, task: Any = None) -> Handle[Any]:
        """Like `handle`, without blocking the event loop."""
        return self._known_handle(id, queue, task) or self._found_handle(await self._client.afind(id), task)

    def _known_handle(self, id: str, queue: str | None, task: Any) -> Handle[Any] | None:
        known = task if isinstance(task, Task) else self._task_named(task or "")
        if known is not None:
            if known._client is not self._client:
                raise ConfigError(
                    f"{known.name} is a task of another app: ask that app for the handle, or give its name "
                    f"and queue, as in handle(id, {known.queue!r}, task={known.name!r})"
                )
            queue = known.queue if queue is None else queue
            return self._client.handle(id, queue, known.name, known.result)
        return None if queue is None else self._client.handle(id, queue, str(task or ""), ANY_RESULT)

    def _found_handle(self, job: Job, task: str | None) -> Handle[Any]:
        known = self._task_named(job.task)
        codec = ANY_RESULT if known is None else known.result
        return self._client.handle(job.id, job.queue, task or job.task, codec)

    @overload
    def results(
        self,
        handles: Iterable[Handle[R]],
        timeout: Duration | None = None,
        *,
        return_errors: Literal[False] = False,
    ) -> list[R]: ...
    @overload
    def results(
        self, handles: Iterable[Handle[R]], timeout: Duration | None = None, *, return_errors: bool
    ) -> list[R | PenstockError]: ...
    def results(
        self, handles: Iterable[Handle[Any]], timeout: Duration | None = None, *, return_errors: bool = False
    ) -> list[Any]:
        """Wait for the results of all these jobs, for at most `timeout`; returns them in the handles' order.

        The first job without a result raises its error at once, as `handle.result()` would; the other jobs
        are not affected. With `return_errors=True` all are waited for, and errors are returned in the places
        of the results. Errors of the store are always raised.
        """
        from penstock.client.results import results

        return results(self.store, handles, timeout, return_errors)

    @overload
    async def aresults(
        self,
        handles: Iterable[Handle[R]],
        timeout: Duration | None = None,
        *,
        return_errors: Literal[False] = False,
    ) -> list[R]: ...
    @overload
    async def aresults(
        self, handles: Iterable[Handle[R]], timeout: Duration | None = None, *, return_errors: bool
    ) -> list[R | PenstockError]: ...
    async def aresults(
        self, handles: Iterable[Handle[Any]], timeout: Duration | None = None, *, return_errors: bool = False
    ) -> list[Any]:
        """Like `results`, without blocking the event loop."""
        from penstock.client.results import aresults

        return await aresults(self.store, handles, timeout, return_errors)

    def as_completed(self, handles: Iterable[Handle[R]], timeout: Duration | None = None) -> AsCompleted[R]:
        """Iterate over the handles as their jobs end: `for` in a thread, `async for` in an event loop.

        The `result()` of such a handle returns at once, with the result or its error. Each job is yielded
        once, even if it was given twice, keeps no result, or does not exist. Raises ResultTimeout for jobs
        that have not ended within `timeout` from the start of the loop.
        """
        from penstock.client.results import AsCompleted

        return AsCompleted(self.store, handles, timeout)

    @overload
    def take(self, queue: str | None = None, *, lease: Duration = ..., wait: None = None) -> Take[Taken]: ...
    @overload
    def take(
        self, queue: str | None = None, *, lease: Duration = ..., wait: Duration
    ) -> Take[Taken | None]: ...
    def take(
        self, queue: str | None = None, *, lease: Duration = "15s", wait: Duration | None = None
    ) -> Take[Any]:
        """Pull one job without a worker: `async with app.take("mail") as job:`.

        Waits for a job, for at most `wait`; the job is None if there was none. The lease is extended while
        the block runs. Leaving the block completes the job. An exception fails it as in a worker, and is
        raised to the caller, unless it is one of Retry, Snooze, Discard and Cancel.
        """
        ms = milliseconds(lease, what="lease")
        if ms < _SHORTEST_LEASE:
            raise ConfigError(f"lease={lease!r} is too short to be extended in time: use 100ms or more")
        wait_ms = None if wait is None else milliseconds(wait, what="wait")
        from penstock.app.outcome_events import emit_outcome, emit_set_aside  # for jobs that are pulled alone
        from penstock.app.take import Take

        name = check_queue(self._defaults.queue if queue is None else queue)
        self.import_tasks()
        return Take(
            self.store,
            self.tasks,
            name,
            ms,
            wait_ms,
            self._keep_dead,
            partial(emit_outcome, self.events),
            self.middleware.attempts,
            partial(emit_set_aside, self.events),
        )

    def queue(self, name: str) -> StoredQueue:
        """The queue's settings: `app.queue("mail").settings(max_running=7)`; see docs/limits.md."""
        return StoredQueue(lambda: self.store, check_queue(name))

    def drained(self, queue: str, timeout: Duration | None = None) -> bool:
        """Wait until a queue has no job queued (delayed and parked ones included) or running. False: timeout.

        Counts every 50 ms. Close the queue first, or it may never become empty: docs/enqueueing.md.
        """
        return self._client.drained(check_queue(queue), timeout)

    async def adrained(self, queue: str, timeout: Duration | None = None) -> bool:
        """Like `drained`, without blocking the event loop."""
        return await self._client.adrained(check_queue(queue), timeout)

    @property
    def outbox(self) -> Outbox:
        """The jobs that wait in memory for an unreachable store; `app.outbox.pending` is their number."""
        return self._client.outbox

    def flush(self, timeout: Duration | None = None) -> bool:
        """Wait until the store has taken all jobs of the outbox. False: timeout."""
        return self._client.flush(timeout)

    async def aflush(self, timeout: Duration | None = None) -> bool:
        """Like `flush`, without blocking the event loop."""
        return await self._client.aflush(timeout)

    def close(self) -> None:
        """Flush the outbox for up to 2 s, then close the store; a later use opens it again.

        Jobs that the store did not take are lost, and logged with their ids.
        """
        self._client.close()
        self.events.close()

    async def aclose(self) -> None:
        """Like `close`, from an event loop."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _made_store(self, given: Store | None) -> Store:
        if given is None:
            for guard in store_guards:
                guard(self.url)
        store = connect(self.url, namespace=self.namespace) if given is None else given
        self._check_support(store)
        return store if self._cipher is None else encrypted_store(store, self._cipher, self.namespace)

    def _check_support(self, store: Store) -> None:
        """Raise Unsupported if the app has registered what this store cannot honour."""
        tasks, entries = set(self.tasks.values()), self.periodic_entries.values()
        check_support(store, tasks, self.handlers.values(), entries, self.queue_defaults)

    def __repr__(self) -> str:
        name = f" {self.name}" if self.name else ""
        return f"<App{name} of {len(set(self.tasks.values()))} tasks on {self.store_url}>"

    if not TYPE_CHECKING:  # type checkers know the attributes, and refuse all others

        def __getattr__(self, name: str) -> Any:
            from penstock.core.peer_words import no_attribute  # only for this message

            raise no_attribute(self, "App", name)
