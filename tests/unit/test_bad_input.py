"""Invalid input gives one error that names the value, the cause and the way out; nothing is stored."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.app.app import App
from penstock.errors import PenstockError
from penstock.events import Event
from penstock.pool import Pool, ThreadPool
from penstock.retry import Exponential, Fixed, Steps
from penstock.worker import Queue, Worker
from tests.cases import each

#: What is no text of any encoding.
HALF = "\udc80"

BAD: dict[str, tuple[Callable[[Rig], Any], str]] = {}


class Rig:
    """An app with a task of each kind."""

    def __init__(self) -> None:
        self.app = App("memory://")
        self.task = self.app.task(name="t")(_work)
        self.alone = self.app.task(name="alone")(_work)

    def declare(self, **options: Any) -> Any:
        return self.app.task(name="x", **options)(_work)

    def put(self, *args: Any, **options: Any) -> Any:
        return self.task.using(**options).enqueue(*args)

    def recur(self, *args: Any, **options: Any) -> Any:
        return self.app.periodic(*args, **options)(self.task)


def _work(n: int = 1) -> int:
    return n


async def _awork(n: int = 1) -> int:
    return n


def bad(says: str, call: Callable[[Rig], Any]) -> None:
    assert says not in BAD, "each has its own message here"
    BAD[says] = (call, says)


# tasks
bad("the task 'x' has no option 'tiemout' (did you mean 'timeout'?)", lambda on: on.declare(tiemout=3))
bad("the task 'x': timeout='soon' is not a duration: write '90s'", lambda on: on.declare(timeout="soon"))
bad("the task 'x': timeout=0 would end every attempt at once", lambda on: on.declare(timeout=0))
bad("the task 'x': retention=-1 is negative", lambda on: on.declare(retention=-1))
bad("the task 'x': max_attempts=2.5 is not a whole number", lambda on: on.declare(max_attempts=2.5))
bad("the task 'x': priority=101 is not a whole number from -100 to 100", lambda on: on.declare(priority=101))
bad("the task 'x': queue='a/b' cannot be a queue's name", lambda on: on.declare(queue="a/b"))
bad("the task 'x': run_in='thred' is not one of", lambda on: on.declare(run_in="thred"))
bad("the task 'x': delivery='exactly-once' is neither", lambda on: on.declare(delivery="exactly-once"))
bad("the task 'x': expires=0: the job could never start", lambda on: on.declare(expires=0))
bad("the task 'x': unique='maybe' is not a duration", lambda on: on.declare(unique="maybe"))
bad("the task 'x': retry='soon' is not a duration", lambda on: on.declare(retry="soon"))
bad("the task 'x': retry=_work: a retry function takes", lambda on: on.declare(retry=_work))
bad("the task 'x': retry_on=5 is not a tuple of exception classes", lambda on: on.declare(retry_on=5))
bad("'ValueError' is not an exception class", lambda on: on.declare(discard_on=["ValueError"]))
bad("both name OSError", lambda on: on.declare(retry_on=(OSError,), discard_on=(OSError,)))
bad("the task 'x': is_failure=True is not a function", lambda on: on.declare(is_failure=True))
bad("the task 'x': on_dead='x' is not a function", lambda on: on.declare(on_dead="x"))
bad("the task 'x': aliases='old' is not a tuple of names", lambda on: on.declare(aliases="old"))
bad("the alias 'x' is listed twice, or is the task's name", lambda on: on.declare(aliases=("x",)))
bad("the task 'x': upgrade=3 is not a function", lambda on: on.declare(upgrade=3))
bad("headers: 'a'=1 is not a text under a name that is a text", lambda on: on.declare(headers={"a": 1}))
bad("the task 'x': headers: 'a'='\\udc80' holds half", lambda on: on.declare(headers={"a": HALF}))
bad("name='a\\x00b' cannot be a task's name", lambda on: on.app.task(name="a\0b")(_work))
bad("cannot be a task's name: use 1 to 200 characters", lambda on: on.app.task(name="a" * 5_000)(_work))
bad("retry=Steps(delays=()) is invalid", lambda on: on.declare(retry=Steps(())))
bad("retry=Exponential(base='x'", lambda on: on.declare(retry=Exponential("x")))
bad("retry=Fixed(delay=-1) has a negative wait", lambda on: on.declare(retry=Fixed(-1)))
# calls
bad("t.using(): delay=-5 is negative", lambda on: on.put(1, delay=-5))
bad("t.using(): delay=nan is not a number", lambda on: on.put(1, delay=float("nan")))
bad("t.using(): delay=inf is longer than 1000 years", lambda on: on.put(1, delay=float("inf")))
bad("is naive, without a time zone", lambda on: on.put(1, run_at=datetime(2030, 1, 1)))
bad("delay= and run_at= both set when", lambda on: on.put(1, delay=1, run_at=datetime.now(UTC)))
bad("t.using(): id='a b' cannot be a job's id", lambda on: on.put(1, id="a b"))
bad("t.using(): deadline='1h' is not a datetime", lambda on: on.put(1, deadline="1h"))
bad("t.using(): headers: 'a'='\\udc80' holds half", lambda on: on.put(1, headers={"a": HALF}))
bad("headers take 100001 characters, the limit is 16000", lambda on: on.put(1, headers={"a": "x" * 100_000}))
bad("t: the argument 'n', 'x' (str), does not fit", lambda on: on.put("x"))
bad("enqueue_many takes task.job(...), not <Task t>", lambda on: on.app.enqueue_many([on.task]))
bad("enqueue_many takes a list of task.job(...), not one", lambda on: on.app.enqueue_many(on.task.job(1)))
bad("enqueue_raw(): the payload is bytes, not 'text'", lambda on: on.app.enqueue_raw("q", "text"))
bad("holds half of a character", lambda on: on.app.enqueue_raw("q", b"", headers={"a": HALF}))
bad("results() takes handles, and number 1 is 5", lambda on: on.app.results([5]))
bad("id=5 cannot be a job's id", lambda on: on.app.handle(5))
# periodic
bad("'* * * *' is not a cron expression: wrong number of fields", lambda on: on.recur("* * * *"))
bad("'61 * * * *' is not a cron expression: bad minute", lambda on: on.recur("61 * * * *"))
bad("'0 0 30 2 *' is not a cron expression", lambda on: on.recur("0 0 30 2 *"))
bad("'@dayly' is not a schedule (did you mean '@daily'?)", lambda on: on.recur("@dayly"))
bad("'Europe/Berln' is not a time zone (did you mean", lambda on: on.recur("@daily", tz="Europe/Berln"))
bad("every='0.5s' must be whole seconds", lambda on: on.recur(every="0.5s"))
bad("a cron expression or every=: give one of the two", lambda on: on.recur("@daily", every="5s"))
bad("misfire='x' is not one of skip, once, all", lambda on: on.recur("@daily", misfire="x"))
bad("overlap='x' is not one of allow, skip, replace", lambda on: on.recur("@daily", overlap="x"))
bad("jitter=-1 is negative", lambda on: on.recur("@daily", jitter=-1))
bad("catch_up=0 is not a whole number from 1", lambda on: on.recur("@daily", catch_up=0))
bad("name='a/b' cannot be the name of a periodic entry", lambda on: on.recur("@daily", name="a/b"))
bad("args=5 is not a list of arguments", lambda on: on.recur("@daily", args=5))
bad("got an unexpected keyword argument 'm'", lambda on: on.recur("@daily", kwargs={"m": 1}))
# handlers, callbacks, hooks
bad("@app.handler needs the queue whose jobs it takes", lambda on: on.app.handler()(_work))
bad("its function takes one argument, the RawJob", lambda on: on.app.handler(queue="q")(lambda: 1))
bad(
    "handler of the queue 'q' has no option 'upgrade'", lambda on: on.app.handler(queue="q", upgrade=1)(_work)
)
bad("app.on_success=5 is not a function: it takes (job, result)", lambda on: on.app.on_success(5))
bad("it takes (job, error)", lambda on: on.app.on_failure(lambda: 1))
bad("app.on_startup(5) is not a function", lambda on: on.app.on_startup(5))
bad("app.on_health(every='1ms') is too often", lambda on: on.app.on_health(every="1ms")(_work))
bad("takes a class of events, as in app.on(JobDied)", lambda on: on.app.on(Event.__name__)(_work))
# apps and workers
bad("no store has the scheme 'sqlight' (did you mean 'sqlite'?)", lambda on: App("sqlight:///x"))
bad("App() has no option 'colour'", lambda on: App("memory://", colour=1))
bad("App(): outbox=-1 is out of range", lambda on: App("memory://", outbox=-1))
bad("namespace='a b' cannot be a namespace", lambda on: App("memory://", namespace="a b"))
bad("queues='mail' is not a list of queues: write queues=['mail']", lambda on: Worker(on.app, "mail"))
bad("queues=5 is not a list of queues", lambda on: Worker(on.app, 5))
bad("queue 'a' is listed twice", lambda on: Worker(on.app, ["a", "a"]))
bad("concurrency='many' must be a whole number, 1 or more", lambda on: Worker(on.app, concurrency="many"))
bad("concurrency=0 must be a whole number", lambda on: Worker(on.app, concurrency=0))
bad("Worker('tasks:app') needs the App object itself", lambda on: Worker("tasks:app"))
bad("queue 'a': weight=0.5 is not a whole number of", lambda on: Queue("a", weight=0.5))
bad("queue 'a': slots=-1 is not a whole number of", lambda on: Queue("a", slots=-1))
# pools
bad("workers=0 must be a whole number, 1 or more", lambda on: Pool(_awork, workers=0, capacity=1))
bad("capacity='x' must be a whole number, 0 or more", lambda on: ThreadPool(_work, workers=1, capacity="x"))
bad("for async functions use Pool", lambda on: ThreadPool(_awork, workers=1, capacity=1))
bad("handler=5 cannot be called", lambda on: Pool(5, workers=1, capacity=1))


@each("call, says", BAD.values())
def test_what_makes_no_sense_is_one_clear_error(call: Callable[[Rig], Any], says: str) -> None:
    rig = Rig()
    with pytest.raises(PenstockError) as caught:
        call(rig)
    message = str(caught.value)
    assert says in message
    assert "\n" not in message
    assert len(message) < 400
    assert rig.app.store.sync.queues() == [], "nothing was stored"
