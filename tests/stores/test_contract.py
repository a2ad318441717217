"""The contract of a store: each verb is a request with a page of its own."""

from __future__ import annotations

import inspect
import re
from typing import get_args

import pytest

from penstock.stores.contract import AnyAct, Request, Store, SyncRequest, SyncStore, requests, verbs


def test_each_verb_is_a_method_of_a_store_and_nothing_else_is() -> None:
    methods = {name for name in dir(Store) if name[0] != "_"}
    assert methods == {
        *verbs(),
        *("list_jobs", "find", "now"),  # made of verbs
        "ask",
        "can",
        "capabilities",
        "close",
        "in_namespace",
        "stream",
        "sync",
        "url",
    }


def test_threads_have_the_verbs_of_producers_and_flows_and_no_operators() -> None:
    methods = {name for name in dir(SyncStore) if name[0] != "_"} - {"ask", "stream"}
    assert {"enqueue", "get", "cancel", "wait_for_end", "stream_ends", "put_flow", "record_steps"} <= methods
    assert not {"edit_steps", "signals", "forget_signals", "prune", "discard"} & methods


def test_the_methods_for_threads_take_what_those_for_event_loops_take() -> None:
    for name in {name for name in dir(SyncStore) if name[0] != "_"} - {"ask", "stream"}:
        twin = inspect.signature(getattr(Store, name))
        assert inspect.signature(getattr(SyncStore, name)).parameters == twin.parameters, name
        assert issubclass(verbs()[name], SyncRequest), name


@pytest.mark.parametrize(
    "request_type", [*requests().values(), *get_args(AnyAct), Request, SyncRequest, SyncStore, Store]
)
def test_each_verb_says_what_it_does(request_type: type) -> None:
    said = inspect.cleandoc(request_type.__doc__ or "")
    first, _, rest = said.partition("\n")
    assert re.search(r"[.:;]$", first), f"{request_type.__qualname__}: one line that says what it does"
    assert not rest.strip() or rest.startswith("\n"), f"{request_type.__qualname__}: a first line of its own"
    assert not re.search(r"\b(It|They|That|Who|What) ", said), (
        f"{request_type.__qualname__}: name the subject"
    )
