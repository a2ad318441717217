"""The thread of a store file survives any exception of a call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import StoreUnavailable
from penstock.stores.sql.transactions import PendingCall, Verb
from penstock.stores.sqlite import SqliteStore
from tests.stores.sqlite.conftest import new, take


class Odd(BaseException):
    """No `Exception`, as what ends a program is none."""


def raising(error: BaseException, *, reads: bool) -> Verb[[], None]:
    def act(_: Any) -> None:
        raise error

    return Verb(act, reads=reads)


def in_a_thread(call: Callable[[], object]) -> list[BaseException | None]:
    """What the call raised, once it has come back; it has 5 s."""
    ends: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # boundary: the test looks at it
            ends.append(error)
        else:
            ends.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    return ends


KINDS: list[type[BaseException]] = [Odd, ValueError, StopIteration, GeneratorExit]


@pytest.mark.parametrize("reads", [True, False], ids=["a read", "a write"])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_exception_of_a_call_goes_to_its_caller_and_the_thread_survives(
    store: SqliteStore, kind: type[BaseException], reads: bool
) -> None:
    await store.enqueue([new("first")])
    runner = store._runner
    thread = runner._thread
    async with asyncio.timeout(60):
        calls = [store.get([new("first").ref]), store.enqueue([new("a")]), store.enqueue([new("b")])]
        bad = runner.run("", raising(kind("odd"), reads=reads))
        *others, answer = await asyncio.gather(*calls, bad, return_exceptions=True)
        assert isinstance(answer, RuntimeError if kind is StopIteration else kind)
        assert [type(one) for one in others] == [list, list, list]
        assert len(await take(store, 5)) == 3
    assert runner._thread is thread
    assert thread is not None
    assert thread.is_alive()


async def test_the_only_write_among_reads_keeps_its_error_to_itself(store: SqliteStore) -> None:
    await store.enqueue([new("first")])
    runner = store._runner
    async with asyncio.timeout(60):
        with runner._waiting_lock:  # so that they come to one transaction
            bad = runner.run("", raising(Odd("odd"), reads=False))
            runner._writes_next = True
            read = asyncio.ensure_future(store.get([new("first").ref]))
            await asyncio.sleep(0)
        answer, error = await asyncio.gather(read, bad, return_exceptions=True)
    assert isinstance(answer, list)
    assert isinstance(error, Odd)


def test_a_thread_that_waits_for_the_serving_one_gets_its_own_error(store: SqliteStore) -> None:
    store.sync.enqueue([new("first")])
    runner = store._runner
    (error,) = in_a_thread(lambda: _through_our_thread(store, raising(Odd("odd"), reads=False)))
    assert isinstance(error, Odd)
    assert in_a_thread(lambda: _through_our_thread(store, raising(Odd("odd"), reads=True))) != []
    assert runner._thread is not None
    assert runner._thread.is_alive()


def _through_our_thread(store: SqliteStore, verb: Verb[[], None]) -> None:

    call = PendingCall("", verb, ())
    store._runner._run_with_others(call)
    if call.error is not None:
        raise call.error


async def test_a_store_that_gets_no_thread_says_so_and_tries_again_with_the_next_call(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(StoreUnavailable, match="can't start new thread"):
            await store.enqueue([new("refused")])
    async with asyncio.timeout(60):
        await store.enqueue([new("taken")])
        assert [job.id for job in await take(store, 5)] == ["taken"]


async def test_many_namespaces_of_one_store_share_its_thread_and_its_file(store: SqliteStore) -> None:
    open_files = Path("/proc/self/fd")
    await store.enqueue([new()])
    threads, files = set(threading.enumerate()), set(open_files.glob("*"))
    views = [store.in_namespace(f"n{n}") for n in range(20)]
    answers = await asyncio.gather(*(view.enqueue([new("same")]) for view in views))
    assert {answer[0].status.value for answer in answers} == {"new"}
    assert not set(threading.enumerate()) - threads
    assert not set(open_files.glob("*")) - files
