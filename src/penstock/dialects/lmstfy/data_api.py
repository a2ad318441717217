"""The data API of lmstfy: from a request to the store and back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from penstock.core.errors import StoreError
from penstock.core.job import Job, Ref
from penstock.dialects.lmstfy import queue_requests
from penstock.dialects.lmstfy.access import (
    Caller,
    Tokens,
    check_access,
    given_token,
    prove_token,
    read_token,
    token_name,
)
from penstock.dialects.lmstfy.backend import Backend
from penstock.dialects.lmstfy.jobs import (
    BODY_LIMITS,
    all_published,
    exists,
    published,
    read_job,
    read_jobs,
    shown,
)
from penstock.dialects.lmstfy.limits import CONSUME, PRODUCE, Permit, TokenLimits
from penstock.dialects.lmstfy.metrics import HttpMetrics, RequestLabels, RequestMeasure
from penstock.dialects.lmstfy.names import (
    MOST_NAME,
    byte_length,
    is_name,
    is_queue_list,
    is_utf8,
    store_queue,
)
from penstock.dialects.lmstfy.polls import Poll
from penstock.dialects.lmstfy.requests import (
    Action,
    Parameters,
    PendingAnswers,
    RefusedError,
    Route,
    answer,
    audited,
    error,
    find_route,
    moved,
    number,
    plain_reply,
    read_query,
    refused_early,
    removed,
)
from penstock.dialects.lmstfy.settings import Defaults
from penstock.web.exchange import Exchange
from penstock.web.hosts import HostRule
from penstock.web.text_cache import TextCache

_log = logging.getLogger("penstock.lmstfy")

#: Makes the answer of a request.
Answering = Callable[[Backend, Route, Parameters, Defaults], Coroutine[Any, Any, bytes]]
#: The requests whose answer takes a call of the store each; the others share calls.
_ANSWERS: dict[Action, Answering] = {
    Action.PEEK: queue_requests.head,
    Action.SIZE: queue_requests.size,
    Action.DESTROY: queue_requests.destroyed,
    Action.DEAD_HEAD: queue_requests.dead_head,
    Action.RESPAWN: queue_requests.dead_respawned,
    Action.DELETE_DEAD: queue_requests.dead_deleted,
    Action.DEAD_SIZE: queue_requests.dead_size,
    Action.DEAD_LIST: queue_requests.dead_listed,
    Action.RESPAWN_JOB: queue_requests.dead_job_respawned,
    Action.DELETE_DEAD_JOB: queue_requests.dead_job_deleted,
    Action.TOUCH: queue_requests.touched,
    Action.RELEASE: queue_requests.released,
    Action.BURY: queue_requests.buried,
}
_SIZES = frozenset({Action.SIZE, Action.DEAD_SIZE})
_MOST_COUNT = 100
#: Names in a consume request: a fetch looks at each queue, and other requests wait for it meanwhile.
_MOST_QUEUES = 2_500
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
        self._answers = PendingAnswers(_failed)
        self._direct: dict[Action, Callable[[Exchange, Route, Backend], None]] = {
            Action.PUBLISH: self._publish,
            Action.BULK: self._publish_many,
            Action.CONSUME: self._consume,
            Action.ACK: self._acknowledge,
            Action.PEEK_JOB: self._peek_job,
            Action.REPUBLISH: self._republish,
        }

    # ── every request ────────────────────────────────────────────────────────────────────────────

    def body_limit(self, exchange: Exchange) -> int:
        """The largest body that this request may have; 0: its body is ignored."""
        if exchange.method != "PUT":
            return 0
        route = find_route(exchange.method, exchange.path)
        if route is None:
            return 0
        return BODY_LIMITS.get(route.action, 0)

    def prove(self, exchange: Exchange, then: Callable[[str | None], None]) -> None:
        """Call `then` with the token of a request, by its name, or with None if it is not valid."""
        route = find_route(exchange.method, exchange.path)
        pool, token = read_token(given_token(exchange))
        if self._tokens is None:
            then(exchange.address)
        elif route is None or not token or pool not in self._pools:
            then(None)
        else:
            prove_token(self._tokens, route, pool, self._pools[pool], token, then)

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""
        if refused_early(exchange, self._hosts):
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
        await self._answers.drained()

    def _authorise(self, exchange: Exchange, route: Route) -> None:
        _check_names(route)
        pool, token = read_token(given_token(exchange))
        backend = self._pools.get(pool)
        if backend is None:
            raise RefusedError(404, "pool not found")
        open_to_all = self._tokens is None or route.action in self._public
        # the namespace of a wrong token is not shown
        shown = route.namespace if open_to_all else ""
        measure = RequestMeasure(self._metrics, _labels[pool, shown, route.action, exchange.method])
        exchange.on_end = measure
        if self._tokens is None or open_to_all:
            self._act(exchange, route, backend)
            return
        if not token:
            raise RefusedError(401, "token not found")

        def decide(caller: Caller | BaseException) -> None:
            if isinstance(caller, Caller) and exchange.unproved:  # the store was away when its body came
                _refuse(exchange, RefusedError(503, "the token could not be checked in time", 1))
            elif isinstance(caller, Caller):
                exchange.caller = caller.name
                measure.labels = _labels[pool, route.namespace, route.action, exchange.method]
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
        answering = _ANSWERS[route.action](backend, route, given, self.defaults)
        act = AUDITED_ACTS.get(route.action)
        if act is not None:
            answering = _with_entry(exchange, route, backend, act, given, answering)
        self._answers.make(exchange, answering)

    # ── publish ──────────────────────────────────────────────────────────────────────────────────

    def _publish(self, exchange: Exchange, route: Route, backend: Backend) -> None:
        job = read_job(exchange, route, self.defaults)

        def done(found: Any) -> None:
            if isinstance(found, BaseException):
                _failed(exchange, found)
            else:
                exchange.answer(published(found[0]))

        backend.publish([job], done)

    def _publish_many(self, exchange: Exchange, route: Route, backend: Backend) -> None:
        jobs = read_jobs(exchange, route, self.defaults)

        def done(found: Any) -> None:
            if isinstance(found, BaseException):
                _failed(exchange, found)
            else:
                exchange.answer(all_published(found))

        backend.publish(jobs, done)

    def _republish(self, exchange: Exchange, route: Route, backend: Backend) -> None:
        job = read_job(exchange, route, self.defaults)
        old = Ref(job.queue, route.job_id)

        async def republished() -> bytes:
            return published(await backend.republish(old, job))

        self._answers.make(exchange, republished())

    # ── consume, acknowledge, read ───────────────────────────────────────────────────────────────

    def _consume(self, exchange: Exchange, route: Route, backend: Backend) -> None:
        given = read_query(exchange.query)
        ttr = number(given, "ttr", self.defaults.ttr)
        timeout = number(given, "timeout", self.defaults.timeout)
        count = number(given, "count", 1)
        if not 1 <= count <= _MOST_COUNT:
            raise RefusedError(400, "invalid count")
        names, queues = _queues[route.namespace, route.queue]
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
            acknowledged = queue_requests.acknowledged_with_lease(backend, route, given, self.defaults)
            self._answers.make(exchange, acknowledged)
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
                backend.metrics.looked_at += 1
                body = shown(job, route.namespace, route.queue, backend.now, remain_tries=0)
                exchange.answer(plain_reply(200, body))

        backend.get(Ref(store_queue(route.namespace, route.queue), route.job_id), done)


def _check_names(route: Route) -> None:
    """Raise RefusedError for names that lmstfy refuses."""
    refusal = _refusals[route.namespace, route.queue, route.action is Action.CONSUME]
    if refusal:
        raise RefusedError(400, refusal)
    if not is_utf8(route.job_id):  # else the store would refuse the whole group of requests
        raise RefusedError(400, "job id contains forbidden characters")


def _refusal(names: tuple[str, str, bool]) -> str:
    """Why lmstfy refuses these names; "" if it does not. `is_list`: the queues of a consume request."""
    namespace, queue, is_list = names
    if not is_list and max(byte_length(namespace), byte_length(queue)) > MOST_NAME:
        return "namespace or queue name too long"
    if not is_name(namespace):
        return "namespace name contains forbidden characters"
    if not (is_queue_list(queue) if is_list else is_name(queue) and not queue.startswith("_")):
        return "queue name contains forbidden characters"
    return "too many queues" if queue.count(",") >= _MOST_QUEUES else ""


def _labels_of(request: tuple[str, str, Action, str]) -> RequestLabels:
    pool, namespace, action, method = request
    return pool, namespace if len(namespace) <= MOST_NAME else "other", action.path, method


def _queues_of(asked: tuple[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The queues of a consume request, each once: their names, and the store's names of them."""
    namespace, listed = asked
    names = tuple(dict.fromkeys(name for name in listed.split(",") if name))
    return names, tuple(store_queue(namespace, name) for name in names)


_refusals, _labels, _queues = TextCache(_refusal), TextCache(_labels_of), TextCache(_queues_of)


def _with_entry(
    exchange: Exchange,
    route: Route,
    backend: Backend,
    act: str,
    given: Parameters,
    answering: Coroutine[Any, Any, bytes],
) -> Coroutine[Any, Any, bytes]:
    """The answer of an act of an operator, after the act has got its entry in the audit log."""
    to = store_queue(route.namespace, route.queue)
    facts = {name: text for name, text in given.items() if name in _FACTS}
    if route.job_id:
        facts["job"] = route.job_id
    who = exchange.caller or "anonymous"
    write = partial(backend.audit_log.write, who, act, to, address=exchange.address, facts=facts)
    return audited(answering, write)


def _count(permit: Permit, action: str, on_end: Callable[[int], None] | None, status: int) -> None:
    """Return the permit of a request that did nothing. A job of a client that is gone may be published."""
    if on_end is not None:
        on_end(status)
    if status not in (200, 201) and (status or action == CONSUME):
        permit.give_back()


def _refuse(exchange: Exchange, refusal: BaseException) -> None:
    if isinstance(refusal, RefusedError):
        exchange.answer(refusal.answer())
    else:
        _failed(exchange, refusal)


def _failed(exchange: Exchange, failure: BaseException) -> None:
    _log.error(
        "%s %s: %s",
        exchange.method,
        exchange.shown_path,
        failure,
        exc_info=None if isinstance(failure, StoreError) else failure,
    )
    exchange.answer(error(500, "internal error"))
