"""A running lmstfy as an old pool: its jobs, tokens and limits are taken by its own HTTP interface."""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from penstock.core.errors import StoreError, StoreUnavailable
from penstock.core.job import Job, Ref, State
from penstock.dialects.lmstfy.access import Tokens
from penstock.dialects.lmstfy.jobs import new_job
from penstock.dialects.lmstfy.limits import Limiter, TokenLimits
from penstock.dialects.lmstfy.names import split_queue, store_queue
from penstock.dialects.lmstfy.old_pools import DRAINED_FIRST, TakenJob
from penstock.web.http_client import HttpAnswer, HttpClient

_log = logging.getLogger("penstock.lmstfy")

T = TypeVar("T")

#: The TTR (s) of a job that is being moved, and the most jobs of a consume request.
_TTR = 60
_MOST_COUNT = 100
#: Queues that one consume request names, at most.
_MOST_QUEUES = 50
#: How long (s) an answer is waited for.
_WITHIN = 2.0
#: The sizes that lmstfy tells, each by a route of its own.
_SIZES = {State.AVAILABLE: "size", State.DEAD: "deadletter/size"}
#: The list of its queues is read again after this time (s).
_LIST_EVERY = 5.0
#: A namespace that it refuses is not asked for jobs again for this long (s).
_AFTER_REFUSAL = 5.0
#: The most refused namespaces that a message names.
_MOST_NAMED = 10


class _Shown(msgspec.Struct):
    """A job as lmstfy shows it."""

    job_id: str
    namespace: str
    queue: str
    data: str | None = None
    ttl: int = 0
    remain_tries: int = 0
    attributes: dict[str, str] | None = None


class OldLmstfy:
    """The lmstfy at `url`.

    - `tokens`: by namespace; "" is for all others.
    - `admin_url`: its admin listener. Without it, the queues are those that requests have named.
    - `account`: NAME:PASSWORD of the admin listener.
    """

    #: A job may be stored until shortly before its TTR ends.
    kept_for = _TTR - 5.0

    def __init__(
        self, url: str, tokens: Mapping[str, str], *, admin_url: str = "", account: str = "", pool: str = ""
    ) -> None:
        self._client = HttpClient(url)
        self._admin = HttpClient(admin_url, limit=1) if admin_url else None
        self._tokens = dict(tokens)
        self._account = account
        self._pool = pool
        self._named: dict[str, None] = {}  # queues that requests have named
        self._listed: list[str] = []
        self._list_at = 0.0
        self._refused: dict[str, tuple[str, float]] = {}  # by namespace: why, and until when (monotonic)

    @property
    def problem(self) -> str:
        """The namespaces whose jobs it does not give, and why; "": none."""
        said = [f"namespace {name!r}: {why}" for name, (why, _) in sorted(self._refused.items())]
        more = [f"{len(said) - _MOST_NAMED} more namespaces"] if len(said) > _MOST_NAMED else []
        return "; ".join([*said[:_MOST_NAMED], *more])

    def start(self) -> None:
        """Nothing happens by time here: the old server does it."""

    async def stop(self) -> None:
        self._client.close()
        if self._admin is not None:
            self._admin.close()

    # ── moving ───────────────────────────────────────────────────────────────────────────────────

    async def take(self, queues: Sequence[str], limit: int) -> list[TakenJob]:
        """Consume jobs. One whose tries are spent by that gets this one back when it is moved.

        A namespace that is refused, such as one whose token is not known here, keeps its jobs there.
        """
        by_namespace: dict[str, list[str]] = {}
        for stored in queues:
            names = split_queue(stored)
            if names is not None:
                by_namespace.setdefault(names[0], []).append(names[1])
                if len(self._named) < 100_000:
                    self._named[stored] = None
        taken: list[TakenJob] = []
        for namespace, wanted in by_namespace.items():
            if len(taken) >= limit:
                break
            if namespace in self._refused and time.monotonic() < self._refused[namespace][1]:
                continue
            try:
                for start in range(0, len(wanted), _MOST_QUEUES):
                    some = wanted[start : start + _MOST_QUEUES]
                    taken += await self._take(namespace, some, limit - len(taken))
            except StoreUnavailable:
                if taken:  # these are consumed
                    return taken
                raise
            except StoreError as error:
                self._note_refusal(namespace, error)
            else:
                self._refused.pop(namespace, None)
        return taken

    async def _take(self, namespace: str, names: list[str], limit: int) -> list[TakenJob]:
        taken: list[TakenJob] = []
        while len(taken) < limit:
            count = max(2, min(_MOST_COUNT, limit - len(taken)))  # one is not answered as an array
            try:
                answer = await self._ask("GET", f"{namespace}/{','.join(names)}?ttr={_TTR}&count={count}")
            except StoreError:
                if taken:
                    return taken
                raise
            if answer.status == 404:
                break
            shown = _decoded(answer, list[_Shown])
            taken += [_taken(one) for one in shown]
            if len(shown) < count:
                break
        return taken

    async def confirm(self, taken: Sequence[TakenJob]) -> None:
        await self.remove([one.job.ref for one in taken])

    async def give_back(self, taken: Sequence[TakenJob]) -> None:
        """Nothing can be given back: their TTR ends after a minute."""

    async def queues(self) -> list[str]:
        now = time.monotonic()
        if self._admin is not None and now >= self._list_at:
            info = await self._ask_admin("/info" + (f"?pool={self._pool}" if self._pool else ""))
            found = _decoded(info, dict[str, list[str] | None]) if info.body else {}
            self._listed = [store_queue(name, one) for name, some in found.items() for one in some or ()]
            self._list_at = now + _LIST_EVERY
        return list(dict.fromkeys([*self._listed, *self._named]))

    # ── tokens ───────────────────────────────────────────────────────────────────────────────────

    async def namespaces(self) -> list[str]:
        """The namespaces that have queues or limits, or a token here; none without the admin listener."""
        if self._admin is None:
            return []
        info = await self._ask_admin("/info")
        found = _decoded(info, dict[str, Any]) if info.body else {}
        limited = [one["namespace"] for one in await self._limiters()]
        return sorted({*found, *limited, *self._tokens} - {""})

    async def tokens(self, namespace: str) -> dict[str, str]:
        """The tokens of a namespace and their descriptions."""
        answer = await self._ask_admin(f"/token/{namespace}")
        return _decoded(answer, dict[str, dict[str, str]]).get("tokens", {})

    async def limits(self) -> list[tuple[str, str, Limiter]]:
        """All limiters, each with its namespace and token."""
        found = [] if self._admin is None else await self._limiters()
        return [
            (one["namespace"], one["token"], msgspec.convert(one["limiter"], Limiter))
            for one in found
            if ":" not in one["token"]  # of another pool of that server
        ]

    async def _limiters(self) -> list[dict[str, Any]]:
        return _decoded(await self._ask_admin("/limits?force_update=true"), list[dict[str, Any]])

    # ── requests ─────────────────────────────────────────────────────────────────────────────────

    async def remove(self, refs: Sequence[Ref]) -> None:
        await _all(self._remove(ref) for ref in refs)

    async def _remove(self, ref: Ref) -> None:
        if path := _path_of_job(ref):
            await self._ask("DELETE", path)

    async def get(self, ref: Ref) -> Job | None:
        path = _path_of_job(ref)
        if not path:
            return None
        answer = await self._ask("GET", path)
        if answer.status == 404:
            return None
        shown = _decoded(answer, _Shown)
        ends = int(time.time() * 1_000) + shown.ttl * 1_000 if shown.ttl else None
        return Job(_taken(shown).job, State.AVAILABLE, expires_at=ends)

    async def counted(self, queue: str, only: State | None = None) -> dict[State, int]:
        asked = {state: path for state, path in _SIZES.items() if only in (None, state)}
        sizes = await asyncio.gather(*(self._size(queue, path) for path in asked.values()))
        return dict(zip(asked, sizes, strict=True))

    async def _size(self, queue: str, path: str) -> int:
        at = _path(queue)
        return int(_decoded(await self._ask("GET", f"{at}/{path}"), dict[str, Any])["size"]) if at else 0

    async def left(self) -> dict[State, int]:
        """Ready and dead jobs of the known queues; lmstfy does not say what is delayed or reserved."""
        queues = await self.queues()
        found = await asyncio.gather(*map(self.counted, queues), return_exceptions=True)
        left = dict.fromkeys(_SIZES, 0)
        for queue, counts in zip(queues, found, strict=True):
            if not isinstance(counts, BaseException):
                left = {state: number + counts[state] for state, number in left.items()}
            elif isinstance(counts, StoreError) and not isinstance(counts, StoreUnavailable):
                self._note_refusal(queue.partition(".")[0], counts)
            else:
                raise counts
        return left

    async def purge(self, queue: str, state: State, limit: int | None) -> int:
        path = _path(queue)
        if not path:
            return 0
        if state is State.AVAILABLE:
            await self._ask("DELETE", path)
            return 0
        before = await self._size(queue, _SIZES[State.DEAD])
        number = before if limit is None else min(before, limit)
        if number:
            await self._ask("DELETE", f"{path}/deadletter?limit={number}")
        return number

    async def dead_head(self, queue: str) -> str:
        path = _path(queue)
        if not path:
            return ""
        answer = await self._ask("GET", f"{path}/deadletter")
        return str(_decoded(answer, dict[str, Any]).get("deadletter_head") or "")

    async def respawn(self, queue: str, limit: int, ttl: int) -> int:
        path = _path(queue)
        if not path:
            return 0
        answer = await self._ask("PUT", f"{path}/deadletter?limit={limit}&ttl={ttl}")
        return int(_decoded(answer, dict[str, Any])["count"])

    async def answers(self) -> str:
        try:
            await self._ask("GET", "penstock/none/size")
        except StoreError as error:
            return str(error)
        return ""

    # ── private ──────────────────────────────────────────────────────────────────────────────────

    def _note_refusal(self, namespace: str, error: StoreError) -> None:
        if namespace not in self._refused:
            _log.warning("namespace %r: %s; its jobs stay there until that is mended", namespace, error)
        self._refused[namespace] = (str(error), time.monotonic() + _AFTER_REFUSAL)

    async def _ask(self, method: str, path: str) -> HttpAnswer:
        """Send a request about a namespace. Raises StoreError, also for what it refuses."""
        token = self._tokens.get(path.partition("/")[0]) or self._tokens.get("", "")
        return await _checked(self._client, method, f"/api/{path}", {"X-Token": token} if token else {})

    async def _ask_admin(self, path: str) -> HttpAnswer:
        assert self._admin is not None
        account = base64.b64encode(self._account.encode()).decode()
        headers = {"Authorization": f"Basic {account}"} if self._account else {}
        return await _checked(self._admin, "GET", path, headers)


def _path(queue: str) -> str:
    """The path of a queue of the store below `/api/`; "" if it is not lmstfy's, or its name was shortened."""
    return "/".join(split_queue(queue) or ())


def _path_of_job(ref: Ref) -> str:
    """The path of a job; "" if no job of lmstfy can have this id in this queue."""
    path = _path(ref.queue)
    return f"{path}/job/{ref.id}" if path and ref.id.isalnum() and ref.id.isascii() else ""


async def _checked(client: HttpClient, method: str, target: str, headers: dict[str, str]) -> HttpAnswer:
    try:
        answer = await client.request(method, target, headers, within=_WITHIN)
    except OSError as error:
        raise StoreUnavailable(f"the old lmstfy: {error}") from error
    if answer.status in (200, 201, 204, 404):
        return answer
    shown = answer.body[:200].decode("utf-8", "replace")
    way_out = "; give the token of this namespace in UpstreamTokens" if answer.status == 401 else ""
    raise StoreError(f"the old lmstfy answered {answer.status}: {shown}{way_out}")


async def _all(requests: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all of them, then raise the first error."""
    for answer in await asyncio.gather(*requests, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer


def _decoded(answer: HttpAnswer, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.MsgspecError as error:
        raise StoreError(f"the old lmstfy answered what is no answer of it: {error}") from error


def _taken(shown: _Shown) -> TakenJob:
    """The job as a new one, with the same id. The delivery to us has spent a try, which it gets back."""
    job = new_job(
        store_queue(shown.namespace, shown.queue),
        shown.job_id,
        base64.b64decode(shown.data or ""),
        delay=0,
        ttl=shown.ttl,
        tries=shown.remain_tries + 1,
        attributes=shown.attributes,
    )
    return TakenJob(msgspec.structs.replace(job, priority=DRAINED_FIRST))


# ── its tokens ───────────────────────────────────────────────────────────────────────────────────


async def take_over_tokens(old: OldLmstfy, pool: str, tokens: Tokens, limits: TokenLimits) -> None:
    """Copy the tokens and limits of the old server that the pool does not have yet; it may be away."""
    try:
        copied = await _copied(old, pool, tokens, limits)
    except StoreError as error:
        _log.warning("pool %s: the tokens of the old lmstfy were not copied: %s", pool, error)
        return
    if copied:
        _log.info("pool %s: copied %d tokens of the old lmstfy", pool, copied)


async def _copied(old: OldLmstfy, pool: str, tokens: Tokens, limits: TokenLimits) -> int:
    copied = 0
    for namespace in await old.namespaces():
        try:
            found = await old.tokens(quote(namespace))
        except StoreUnavailable:
            raise
        except StoreError as error:
            _log.warning(
                "pool %s: the tokens of the namespace %s were not copied: %s", pool, namespace, error
            )
            continue
        for token, description in found.items():
            if await tokens.create(pool, namespace, description, token) is not None:
                copied += 1
    for namespace, token, limiter in await old.limits():
        await limits.put(pool, namespace, token, limiter, new=True)  # one that is there already stays
    return copied
