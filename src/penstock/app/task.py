"""Tasks: functions that can be enqueued."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

import msgspec

from penstock.client.client import Client
from penstock.client.handle import Handle
from penstock.client.job_call import JobCall, Template
from penstock.client.key_functions import KeyFunctions
from penstock.client.option_readers import RetryFunction, RunIn
from penstock.client.options import (
    CallOptions,
    Options,
    override_call,
)
from penstock.codec import ArgsCodec, ResultCodec
from penstock.core.errors import ConfigError
from penstock.core.portable import in_process
from penstock.core.relations import Batch
from penstock.core.retry import RetryPolicy
from penstock.core.text import plain
from penstock.core.unique import Unique

if TYPE_CHECKING:
    from penstock.client.flows.canvas import Group

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _Enqueueable(Generic[P, R]):
    """The enqueue methods of a task. Arguments are checked at the call, by type checkers and at run time."""

    def __init__(self, client: Client, template: Template, args: ArgsCodec, id: str = "") -> None:
        self._client = client
        self._template = template
        template.client = client
        self._args = args
        self._encode = args.encode
        self._id = id

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store a job that makes this call; when the method returns, the job is stored.

        Raises ArgumentError if the arguments do not fit the function, EnqueueError or StoreError if the store
        did not take the job.
        """
        return self._client.enqueue(JobCall(self._template, self._encode(args, kwargs), self._id))

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Like `enqueue`, without blocking the event loop; concurrent calls share one write."""
        return await self._client.aenqueue(JobCall(self._template, self._encode(args, kwargs), self._id))

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> JobCall[R]:
        """Make a job of this call for `app.enqueue_many`, checked now and stored then."""
        return JobCall(self._template, self._encode(args, kwargs), self._id)

    def partial(self, /, *args: Any, **kwargs: Any) -> JobCall[R]:
        """Make a call that lacks arguments, for a flow: the result of the node before it fills the first gap.

        The arguments are checked now. See docs/workflows.md.
        """
        return JobCall(self._template, self._args.encode_partial(args, kwargs), self._id)

    def map(self, items: Iterable[Any]) -> Group[R]:
        """A group of one job per item, with the item as its argument."""
        from penstock.client.flows.canvas import Group  # for flows alone

        return Group.of([JobCall(self._template, self._encode((item,), {})) for item in items], self._client)

    def starmap(self, items: Iterable[Iterable[Any]]) -> Group[R]:
        """A group of one job per item, with the elements of the item as its arguments."""
        from penstock.client.flows.canvas import Group  # for flows alone

        calls: list[JobCall[R]] = [JobCall(self._template, self._encode(tuple(item), {})) for item in items]
        return Group.of(calls, self._client)

    def chunks(self, items: Iterable[Any], n: int) -> Group[R]:
        """A group of one job per `n` items, with a list of them as its argument."""
        from penstock.client.flows.canvas import chunks_of  # for flows alone

        return self.map(chunks_of(items, n))

    if not TYPE_CHECKING:  # type checkers know the attributes, and refuse all others

        def __getattr__(self, name: str) -> Any:
            from penstock.core.peer_words import no_attribute  # only for this message

            raise no_attribute(self, "Task", name)


class Limits(msgspec.Struct, frozen=True):
    """Maximum bytes of one job's arguments and of its result."""

    payload: int
    result: int


@in_process("give it a name in its module, by which pickle finds it, or send task.name")
class Task(_Enqueueable[P, R]):
    """A function with a name and options. Calling it calls the function; `enqueue` lets a worker call it.

    Made by `@app.task`. Durations here are in ms.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        client: Client,
        name: str,
        options: Options,
        run_in: RunIn,
        codecs: tuple[ArgsCodec, ResultCodec],
        aliases: tuple[str, ...] = (),
        key_functions: KeyFunctions | None = None,
        carried: ArgsCodec | None = None,
    ) -> None:
        # attributes of an object that can be called are its own: one named `enqueue`, say
        of_function = inspect.isroutine(function)
        functools.update_wrapper(self, function, updated=("__dict__",) if of_function else ())
        self.function = function
        self.name = name
        #: Former names, the oldest first.
        self.aliases = aliases
        #: The oldest name: keys, entries and counts go by it, whatever the task is called now.
        self.identity = aliases[0] if aliases else name
        self.options = options
        self.run_in: RunIn = run_in
        self.args, self.result = codecs
        self._key_functions = key_functions
        #: The codec of one job's payload: the arguments, or for a batch task one element of its list.
        self.carried = carried or self.args
        template = Template(name, options, self.result, self.carried, key_functions, self.identity)
        super().__init__(client, template, self.carried)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def using(self, **options: Unpack[CallOptions]) -> Using[P, R]:
        """The task with other options for this call: `task.using(delay="5m").enqueue(...)`."""
        who = f"{self.name}.using()"
        chosen = override_call(self.options, options, who=who)
        if "unique" in options:
            check_unique(chosen, self.function, who)
            check_unique_batch(chosen, who)
        template = Template(self.name, chosen, self.result, self.carried, self._key_functions, self.identity)
        return Using(self._client, template, self.carried, plain(options.get("id", "")))

    @property
    def queue(self) -> str:
        return self.options.queue

    @property
    def priority(self) -> int:
        return self.options.priority

    @property
    def max_attempts(self) -> int:
        return self.options.max_attempts

    @property
    def retry(self) -> RetryPolicy | None:
        return self.options.retry

    @property
    def retry_function(self) -> RetryFunction | None:
        return self.options.retry_function

    @property
    def timeout(self) -> int | None:
        return self.options.timeout

    @property
    def expires(self) -> int | None:
        return self.options.expires_in

    @property
    def retention(self) -> int:
        return self._template.retention

    @property
    def unique(self) -> Unique | None:
        return self.options.unique

    @property
    def at_most_once(self) -> bool:
        return self.options.at_most_once

    @property
    def batch(self) -> Batch | None:
        return self.options.batch

    def __repr__(self) -> str:
        return f"<Task {self.name}>"


class SyncTask(Task[P, R]):
    """A task made of a `def`: a direct call returns the function's result."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.function(*args, **kwargs)
        return result


class AsyncTask(Task[P, R]):
    """A task made of an `async def`: a direct call returns a coroutine."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        coroutine: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return coroutine


class SyncBatchTask(Task[[T], None], Generic[T, R]):
    """A batch task made of a `def` that takes a list; it is enqueued element by element."""

    def __call__(self, items: list[T], /) -> R:
        result: R = self.function(items)
        return result


class AsyncBatchTask(Task[[T], None], Generic[T, R]):
    """A batch task made of an `async def` that takes a list; it is enqueued element by element."""

    def __call__(self, items: list[T], /) -> Coroutine[Any, Any, R]:
        coroutine: Coroutine[Any, Any, R] = self.function(items)
        return coroutine


@in_process("send the options, and use task.using() there")
class Using(_Enqueueable[P, R]):
    """A task with the options of one call; it can be kept and used again."""

    def __repr__(self) -> str:
        return f"<Using of {self._template.task}>"


class Handler:
    """A function that handles every raw job of a queue, of any task name."""

    def __init__(
        self,
        queue: str,
        function: Callable[..., Any],
        options: Options,
        run_in: RunIn,
        result: ResultCodec,
    ) -> None:
        self.queue = queue
        self.function = function
        self.options = options
        self.run_in: RunIn = run_in
        self.result = result

    @property
    def timeout(self) -> int | None:
        return self.options.timeout

    @property
    def retry_function(self) -> RetryFunction | None:
        return self.options.retry_function

    def __repr__(self) -> str:
        return f"<Handler of the queue {self.queue!r}>"


def check_unique_batch(options: Options, who: str) -> None:
    """Raise ConfigError for a unique rule that a batch task cannot have."""
    rule = options.unique
    if options.batch is not None and rule is not None and (rule.names is not None or callable(rule.key)):
        raise ConfigError(
            f"{who}: a job of a batch carries one element: unique=True compares it, unique_key= names it; "
            "by= and a function need arguments"
        )


def check_unique(options: Options, function: Callable[..., Any] | None, who: str) -> None:
    """Raise ConfigError for a unique rule that does not fit the function's arguments."""
    if options.unique is not None:
        try:
            options.unique.check(None if function is None else inspect.signature(function))
        except ConfigError as error:
            raise ConfigError(f"{who}: {error}") from None
