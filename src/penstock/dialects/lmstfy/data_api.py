"""The data API of lmstfy: from a request to the store and back."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from penstock.core.errors import StoreError
from penstock.core.job import Job, Ref
from penstock.dialects.lmstfy import dead_letters, lease_requests, publishing
from penstock.dialects.lmstfy.access import Caller, check_access, given_token
from penstock.dialects.lmstfy.backend import Backend
from penstock.dialects.lmstfy.bodies import answer, error, plain_reply, removed
from penstock.dialects.lmstfy.counters import HttpMetrics, RequestLabels, RequestMeasure
from penstock.dialects.lmstfy.defaults import Defaults
from penstock.dialects.lmstfy.jobs import exists, shown
from penstock.dialects.lmstfy.limits import CONSUME, PRODUCE, Permit, TokenLimits
from penstock.dialects.lmstfy.names import MOST_NAME, is_name, is_queue_list, is_utf8, store_queue
from penstock.dialects.lmstfy.parameters import RefusedError, number, read_query
from penstock.dialects.lmstfy.poll import Poll
from penstock.dialects.lmstfy.queue_requests import destroyed, head, size
from penstock.dialects.lmstfy.routes import PATTERNS, Action, Route, find_route, moved, turned_away
from penstock.dialects.lmstfy.tokens import Tokens, read_token, token_name
from penstock.web.exchange import Exchange
from penstock.web.hosts import HostRule
from penstock.web.replies import status_of

__all__ = ["DataApi"]

_log = logging.getLogger("penstock.lmstfy")

#: A coroutine that makes the answer of a request.
Answering = Callable[[Backend, str, str, dict[str, str]], Coroutine[Any, Any, bytes]]
AnsweringOfJob = Callable[[Backend, Route, dict[str, str], Defaults], Coroutine[Any, Any, bytes]]
_SIZES = frozenset({Action.SIZE, Action.DEAD_SIZE})
_MOST_COUNT = 100
#: The actions that get an entry in the audit log, and the parameters that it shows.
AUDITED_ACTS = {
    Action.DESTROY: "queue.destroy",
    Action.RESPAWN: "dead.retry",
    Action.DELETE_DEAD: "dead.delete",
    Action.RESPAWN_JOB: "dead.retry",
    Action.DELETE_DEAD_JOB: "dead.delete",
}
_FACTS = frozenset({"limit", "ttl"})
#: The actions that limits count, and lmstfy's names of them.
_LIMITED = {Action.PUBLISH: PRODUCE, Action.BULK: PRODUCE, Action.CONSUME: CONSUME}


class DataApi:
    """Handles the requests of the data listener.

    `pools`: the stores by the name that the prefix of a token chooses. `tokens` None: no request needs one,
    and there are no `limits`.
    """

    def __init__(
        self,
        pools: Mapping[str, Backend],
        tokens: Tokens | None,
        limits: TokenLimits,
        metrics: HttpMetrics,
        *,
        hosts: HostRule,
        public_sizes: bool = True,
        defaults: Defaults | None = None,
    ) -> None:
        self._pools = pools
        self._tokens = tokens
        self._limits = limits
        self._metrics = metrics
        self._hosts = hosts
        self._public = _SIZES if public_sizes else frozenset()
        self.defaults = defaults or Defaults()
        self._tasks: set[asyncio.Task[None]] = set()
        self._direct: dict[Action, Callable[[Exchange, Route, Backend], None]] = {
            Action.PUBLISH: self._publish,
            Action.BULK: self._publish_many,
            Action.CONSUME: self._consume,
            Action.ACK: self._acknowledge,
            Action.PEEK_JOB: self._peek_job,
            Action.REPUBLISH: self._republish,
        }
        self._of_job: dict[Action, AnsweringOfJob] = {
            Action.TOUCH: lease_requests.touched,
            Action.RELEASE: lease_requests.released,
            Action.BURY: lease_requests.buried,
            Action.RESPAWN_JOB: dead_letters.respawned_job,
            Action.DELETE_DEAD_JOB: dead_letters.deleted_job,
        }
        self._slower: dict[Action, Answering] = {
            Action.PEEK: head,
            Action.SIZE: size,
            Action.DESTROY: destroyed,
            Action.DEAD_HEAD: dead_letters.head,
            Action.RESPAWN: self._respawned,
            Action.DELETE_DEAD: dead_letters.deleted,
            Action.DEAD_SIZE: dead_letters.size,
            Action.DEAD_LIST: dead_letters.listed,
        }

    # ── every request ────────────────────────────────────────────────────────────────────────────

    def body_limit(self, exchange: Exchange) -> int:
        """The largest body that this request may have; 0: its body is ignored."""
        if exchange.method != "PUT":
            return 0
        route = find_route(exchange.method, exchange.path)
        if route is None:
            return 0
        return publishing.BODY_LIMITS.get(route.action, 0)

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""
        if turned_away(exchange, self._hosts):
            return
        route = find_route(exchange.method, exchange.path)
        if route is None:
            exchange.answer(error(404, "api not found"))
            return
        if route.action is Action.REDIRECT:
            exchange.answer(moved(exchange))
            return
        try:
            self._authorise(exchange, route)
        except RefusedError as refusal:
            _refuse(exchange, refusal)

    async def drained(self) -> None:
        """Wait until all requests are answered that are not waiting for a job."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def _authorise(self, exchange: Exchange, route: Route) -> None:
        _check_names(route)
        pool, token = read_token(given_token(exchange))
        backend = self._pools.get(pool)
        if backend is None:
            raise RefusedError(404, "pool not found")
        open_to_all = self._tokens is None or route.action in self._public
        # the namespace of a wrong token is not shown
        shown = route.namespace if open_to_all else ""
        measure = RequestMeasure(self._metrics, _labels(pool, shown, route.action, exchange.method))
        exchange.on_end = measure
        if self._tokens is None or open_to_all:
            self._act(exchange, route, backend)
            return
        if not token:
            raise RefusedError(401, "token not found")

        def decide(caller: Caller | BaseException) -> None:
            if isinstance(caller, Caller):
                exchange.caller = caller.name
                measure.labels = _labels(pool, route.namespace, route.action, exchange.method)
                self._limit(exchange, route, pool, caller.token)
            else:
                _refuse(exchange, caller)

        check_access(self._tokens, route, pool, backend, token, decide)

    def _limit(self, exchange: Exchange, route: Route, pool: str, token: str) -> None:
        """Act, unless the token's limit is reached. A request that does not succeed does not count.

        A native `token` is "": it has its own rate.
        """
        action = _LIMITED.get(route.action)
        if action is None or not token:
            self._act_or_refuse(exchange, route, self._pools[pool])
            return

        def decide(permit: Permit | bool | BaseException | None) -> None:
            if permit is False:
                self._metrics.limited(
                    pool, route.namespace, token_name(pool, route.namespace, token)[:8], action
                )
                said = f"token({token}) {action} reach the limit rate, please retry later"
                exchange.answer(answer(429, msg=said))
            elif isinstance(permit, BaseException):
                _failed(exchange, permit)
            else:
                if isinstance(permit, Permit):
                    exchange.on_end = partial(_count, permit, action, exchange.on_end)
                self._act_or_refuse(exchange, route, self._pools[pool])

        self._limits.ask(pool, route.namespace, token, action, decide)

    def _act_or_refuse(self, exchange: Exchange, route: Route, backend: Backend) -> None:
        if exchange.gone and exchange.method == "GET":  # its client did not wait for the look-ups
            exchange.ended(0)
            return
        try:
            self._act(exchange, route, backend)
        except RefusedError as refusal:
            _refuse(exchange, refusal)

    def _act(self, exchange: Exchange, route: Route, backend: Backend) -> None:
        direct = self._direct.get(route.action)
        if direct is not None:
            direct(exchange, route, backend)
            return
        given = read_query(exchange.query)
        of_job = self._of_job.get(route.action)
        if of_job is not None:
            answering = of_job(backend, route, given, self.defaults)
        else:
            answering = self._slower[route.action](backend, route.namespace, route.queue, given)
        act = AUDITED_ACTS.get(route.action)
        if act is not None:
            answering = _with_entry(exchange, route, backend, act, given, answering)
        self._run(exchange, answering)

    def _run(self, exchange: Exchange, answering: Coroutine[Any, Any, bytes]) -> None:
        async def run() -> None:
            try:
                exchange.answer(await answering)
            except Exception as failure:  # noqa: BLE001  # boundary: every request gets an answer
                _refuse(exchange, failure)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ── publish ──────────────────────────────────────────────────────────────────────────────────

    def _publish(self, exchange: Exchange, route: Route, backend: Backend) -> None:
        job = publishing.read_job(exchange, route, self.defaults)

        def done(found: Any) -> None:
            if isinstance(found, BaseException):
                _failed(exchange, found)
            else:
                exchange.answer(publishing.published(found[0]))

        backend.publish([job], done)

    def _publish_many(self, exchange: Exchange, route: Route, backend: Backend) -> None:
        jobs = publishing.read_jobs(exchange, route, self.defaults)

        def done(found: Any) -> None:
            if isinstance(found, BaseException):
                _failed(exchange, found)
            else:
                exchange.answer(publishing.all_published(found))

        backend.publish(jobs, done)

    def _republish(self, exchange: Exchange, route: Route, backend: Backend) -> None:
        job = publishing.read_job(exchange, route, self.defaults)
        old = Ref(job.queue, route.job_id)

        async def republished() -> bytes:
            return publishing.published(await backend.republish(old, job))

        self._run(exchange, republished())

    # ── consume, acknowledge, read ───────────────────────────────────────────────────────────────

    def _consume(self, exchange: Exchange, route: Route, backend: Backend) -> None:
        given = read_query(exchange.query)
        ttr = number(given, "ttr", self.defaults.ttr)
        timeout = number(given, "timeout", self.defaults.timeout)
        count = number(given, "count", 1)
        if not 1 <= count <= _MOST_COUNT:
            raise RefusedError(400, "invalid count")
        names, queues = _queues_of(route.namespace, route.queue)
        if not names:
            raise RefusedError(400, "invalid queue name(s)")
        backend.consume(
            Poll(
                exchange,
                route.namespace,
                names,
                queues,
                ttr=ttr,
                timeout=timeout,
                count=count,
                charge=given.get("freeze_tries") != "true",
                with_lease=given.get("lease") == "true",
            )
        )

    def _acknowledge(self, exchange: Exchange, route: Route, backend: Backend) -> None:
        given = read_query(exchange.query)
        if "lease" in given:
            acknowledged = lease_requests.acknowledged_with_lease(backend, route, given, self.defaults)
            self._run(exchange, acknowledged)
            return

        def done(failure: BaseException | None) -> None:
            if failure is None:
                exchange.answer(removed())
            else:
                _failed(exchange, failure)

        backend.remove(Ref(store_queue(route.namespace, route.queue), route.job_id), done)

    def _peek_job(self, exchange: Exchange, route: Route, backend: Backend) -> None:
        def done(job: Job | BaseException | None) -> None:
            if isinstance(job, BaseException):
                _failed(exchange, job)
            elif job is None or not exists(job, backend.now):
                exchange.answer(error(404, "job not found"))
            else:
                body = shown(job, route.namespace, route.queue, backend.now, remain_tries=0)
                exchange.answer(plain_reply(200, body))

        backend.get(Ref(store_queue(route.namespace, route.queue), route.job_id), done)

    async def _respawned(self, backend: Backend, namespace: str, queue: str, given: dict[str, str]) -> bytes:
        return await dead_letters.respawned(backend, namespace, queue, given, self.defaults.ttl)


def _check_names(route: Route) -> None:
    """Raise RefusedError for names that lmstfy refuses."""
    refusal = _refusal(route.namespace, route.queue, route.action is Action.CONSUME)
    if refusal:
        raise RefusedError(400, refusal)
    if not is_utf8(route.job_id):  # else the store would refuse the whole group of requests
        raise RefusedError(400, "job id contains forbidden characters")


@functools.lru_cache(maxsize=4_096)
def _refusal(namespace: str, queue: str, is_list: bool) -> str:
    """Why lmstfy refuses these names; "" if it does not. `is_list`: the queues of a consume request."""
    if not is_list and (len(namespace) > MOST_NAME or len(queue) > MOST_NAME):
        return "namespace or queue name too long"
    if not is_name(namespace):
        return "namespace name contains forbidden characters"
    if not (is_queue_list(queue) if is_list else is_name(queue) and not queue.startswith("_")):
        return "queue name contains forbidden characters"
    return ""


@functools.lru_cache(maxsize=4_096)
def _labels(pool: str, namespace: str, action: Action, method: str) -> RequestLabels:
    return (pool, namespace, PATTERNS[action], method)


@functools.lru_cache(maxsize=4_096)
def _queues_of(namespace: str, listed: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The queues of a consume request, each once: their names, and the store's names of them."""
    names = tuple(dict.fromkeys(name for name in listed.split(",") if name))
    return names, tuple(store_queue(namespace, name) for name in names)


async def _with_entry(
    exchange: Exchange,
    route: Route,
    backend: Backend,
    act: str,
    given: dict[str, str],
    answering: Coroutine[Any, Any, bytes],
) -> bytes:
    """The answer of an act of an operator, after the act has got its entry in the audit log."""
    to = store_queue(route.namespace, route.queue)
    facts = {name: text for name, text in given.items() if name in _FACTS}
    if route.job_id:
        facts["job"] = route.job_id
    who = exchange.caller or "anonymous"
    write = partial(backend.audit_log.write, who, act, to, address=exchange.address, facts=facts)
    try:
        done = await answering
    except RefusedError:
        raise
    except Exception:  # boundary: an act that failed midway may have done something
        await write(status=500)
        raise
    await write(status=status_of(done))
    return done


def _count(permit: Permit, action: str, on_end: Callable[[int], None] | None, status: int) -> None:
    """Return the permit of a request that did nothing. A job of a client that is gone may be published."""
    if on_end is not None:
        on_end(status)
    if status not in (200, 201) and (status or action == CONSUME):
        permit.give_back()


def _refuse(exchange: Exchange, refusal: BaseException) -> None:
    if isinstance(refusal, RefusedError):
        exchange.answer(error(refusal.status, refusal.error, refusal.retry_after))
    else:
        _failed(exchange, refusal)


def _failed(exchange: Exchange, failure: BaseException) -> None:
    _log.error(
        "%s %s: %s",
        exchange.method,
        exchange.path.decode("latin-1"),
        failure,
        exc_info=None if isinstance(failure, StoreError) else failure,
    )
    exchange.answer(error(500, "internal error"))
