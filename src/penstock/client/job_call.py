"""A call of a task with its encoded arguments, not enqueued yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from penstock.client.key_functions import KeyFunctions
from penstock.client.options import Options
from penstock.codec import ArgsCodec, ResultCodec
from penstock.core.errors import ArgumentError, ConfigError
from penstock.core.ids import mint
from penstock.core.job import FINISHED_KEPT, NewJob
from penstock.core.portable import in_process
from penstock.core.text import plain, whole
from penstock.core.unique import Unique, UniqueKey, key_digest

R_co = TypeVar("R_co", covariant=True)


class Template:
    """The part that all jobs of one task with the same options share, prepared so that a job costs little.

    `args` decodes the arguments for a unique key; without it, the key is made from the payload. `identity`
    is the oldest name of a renamed task: keys, entries and counts go by it, so that releases with different
    names share them.
    """

    __slots__ = (
        "_key_of",
        "_rest",
        "_unique",
        "args",
        "batches",
        "client",
        "codec",
        "identity",
        "key_functions",
        "queue",
        "retention",
        "task",
    )

    def __init__(
        self,
        task: str,
        options: Options,
        codec: ResultCodec,
        args: ArgsCodec | None = None,
        key_functions: KeyFunctions | None = None,
        identity: str = "",
    ) -> None:
        self.identity = identity or task
        # a batch collects jobs of one name: all releases enqueue its members under the oldest
        self.task = task if options.batch is None else self.identity
        self.codec = codec
        self.args = args
        #: The client of the app whose task it is.
        self.client: Any = None
        self._unique = None if options.unique is None else options.unique.terms()
        self._key_of = None if options.unique is None else _key_of(options.unique, self.identity, args)
        self.key_functions = key_functions
        self.retention = FINISHED_KEPT if options.retention is None else options.retention
        self.queue = options.queue
        #: Whether its jobs collect batches.
        self.batches = options.batch is not None
        self._rest = _fields_after_payload(options, self.retention)

    @property
    def sample(self) -> NewJob:
        """A job with the options of this template and with empty keys, to be checked and never stored."""
        job = msgspec.structs.replace(NewJob("", self.task, b"", *self._rest), unique=self._unique)
        return job if self.key_functions is None else self.key_functions.sample(job)

    def refuse_unless(self, own: bool) -> None:
        """Raise ConfigError for a call of another app, whose jobs belong into that app's store."""
        if not own:
            raise ConfigError(
                f"{self.task or 'a raw job'} is a call of another app, and its jobs go to the store of that "
                "app: enqueue it there, or make the task one of this app; nothing was stored"
            )

    @property
    def has_key(self) -> bool:
        """Whether its jobs have a unique key."""
        return self._key_of is not None

    def new(self, id: str, payload: bytes) -> NewJob:
        """Make the job with this id and payload."""
        job = self._new(id, payload)
        return job if self.key_functions is None else self.key_functions.apply(job)

    def node(self, id: str, payload: bytes) -> NewJob:
        """Make the job of a node of a flow, whose payload may lack arguments that results will fill."""
        job = self._new(id, payload)
        return job if self.key_functions is None else self.key_functions.apply(job, partial=True)

    def _new(self, id: str, payload: bytes) -> NewJob:
        if self._key_of is None:
            return NewJob(id, self.task, payload, *self._rest)
        key = self._key_of(payload)
        return msgspec.structs.replace(NewJob(id, self.task, payload, *self._rest), unique=key)


@in_process("send the arguments, and use task.job() there")
class JobCall(msgspec.Struct, Generic[R_co]):
    """The result of `task.job(...)`, for `app.enqueue_many`.

    A call is one job and keeps its id: if it is sent twice (after a lost reply, say), it is not stored twice.
    The store answers that it exists.
    """

    template: Template
    payload: bytes
    given_id: str = ""

    @property
    def id(self) -> str:
        """The job's id, generated at the first use if none was given."""
        if not self.given_id:
            self.given_id = mint()
        return self.given_id

    @property
    def given(self) -> bool:
        """Whether the caller has chosen the id."""
        return bool(self.given_id)

    def new(self) -> NewJob:
        """Make the job for the store."""
        return self.template.new(self.given_id or self.id, self.payload)

    def __repr__(self) -> str:
        return f"<JobCall of {self.template.task} {self.payload[:80]!r}>"


def _key_of(rule: Unique, task: str, args: ArgsCodec | None) -> Callable[[bytes], UniqueKey]:
    """A function that makes the unique key of a call of this task under this rule."""
    terms, names = rule.terms(), rule.names

    def unique_key(how: str, what: bytes) -> UniqueKey:
        digest = key_digest(task, how, what)
        return UniqueKey(digest, terms.period, terms.phases, terms.replace, terms.reject)

    if isinstance(rule.key, str):
        result = unique_key("key", plain(rule.key).encode("utf-8", "surrogatepass"))
        return lambda payload: result
    if args is None:
        return lambda payload: unique_key("payload", payload)
    if rule.key is None:
        how = "arguments" if names is None else "by " + ",".join(sorted(names))
        return lambda payload: unique_key(how, args.canonical(payload, names))
    return lambda payload: unique_key(
        "key", _key_by_function(rule, task, args, payload).encode("utf-8", "surrogatepass")
    )


def _key_by_function(rule: Unique, task: str, args: ArgsCodec, payload: bytes) -> str:
    """The return value of the rule's key function for this call, checked."""
    assert callable(rule.key)
    arguments = args.by_name(payload)
    try:
        result = rule.key(**{name: arguments[name] for name in rule.key_arguments(args.signature)})
    except Exception as error:  # boundary: a user's function
        raise ArgumentError(
            f"{task}: the key function of unique= failed with {type(error).__name__}: {error}; "
            "nothing was stored"
        ) from error
    if not isinstance(result, (str, int)) or isinstance(result, bool) or result == "":
        raise ArgumentError(
            f"{task}: the key function of unique= returned {result!r:.100}, "
            "which is neither a text nor a number; nothing was stored"
        )
    return plain(result) if isinstance(result, str) else str(whole(result))


def _fields_after_payload(options: Options, retention: int) -> tuple[Any, ...]:
    """The fields of NewJob after the third, in its order."""
    terms = None if options.batch is None else options.batch.terms(options.batch_key)
    given = {**msgspec.structs.asdict(options), "unique": None, "retention": retention, "batch_terms": terms}
    given |= {"partition": None, "tenant": None}  # of each call
    given["fetch_starts"] = False  # of other protocols only
    given["flow"] = None  # of the nodes of flows only
    return tuple(given[name] for name in NewJob.__struct_fields__[3:])
