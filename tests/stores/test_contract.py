"""The contract of a store: each verb has one page, and the same signature in its async and sync versions."""

from __future__ import annotations

import inspect
import re

import pytest

from penstock.stores.contract import (
    Changing,
    Consuming,
    Documenting,
    Flowing,
    Measuring,
    Operating,
    Producing,
    Scheduling,
    Searching,
    Stepping,
    Store,
    SyncFlowing,
    SyncOperating,
    SyncProducing,
    SyncStepping,
    SyncStore,
)

PAGES = (
    Changing,
    Producing,
    Consuming,
    Scheduling,
    Operating,
    Searching,
    Documenting,
    Measuring,
    Flowing,
    Stepping,
)
DOORS = {
    SyncProducing: Producing,
    SyncOperating: Operating,
    SyncFlowing: Flowing,
    SyncStepping: Stepping,
}


def verbs(protocol: type) -> list[str]:
    """The public methods that the protocol itself defines."""
    return [name for name, member in vars(protocol).items() if name[0] != "_" and inspect.isfunction(member)]


def test_each_verb_stands_on_one_page() -> None:
    named = [verb for page in PAGES for verb in verbs(page)]
    assert len(named) == len(set(named))
    assert {*named, "url", "sync", "close", "in_namespace"} == {name for name in dir(Store) if name[0] != "_"}


def test_the_sync_verbs_of_producers_are_all_of_theirs_and_no_operators() -> None:
    assert verbs(SyncProducing) == verbs(Producing)
    assert verbs(SyncStepping) == verbs(Stepping)
    assert set(verbs(SyncOperating)) <= set(verbs(Operating))
    assert set(verbs(SyncFlowing)) <= set(verbs(Flowing))
    assert {verb for sync in DOORS for verb in verbs(sync)} == {n for n in dir(SyncStore) if n[0] != "_"}


@pytest.mark.parametrize("sync", DOORS, ids=lambda sync: sync.__name__)
def test_a_sync_verb_takes_what_its_twin_takes(sync: type) -> None:
    for verb in verbs(sync):
        twin = getattr(DOORS[sync], verb)
        assert inspect.signature(getattr(sync, verb)).parameters == inspect.signature(twin).parameters, verb


@pytest.mark.parametrize("page", [*PAGES, *DOORS, SyncStore, Store], ids=lambda page: page.__name__)
def test_each_verb_says_what_it_does(page: type) -> None:
    for member in (page, *(getattr(page, verb) for verb in verbs(page))):
        said = inspect.cleandoc(member.__doc__ or "")
        first, _, rest = said.partition("\n")
        assert re.search(r"[.:;]$", first), f"{member.__qualname__}: one line that says what it does"
        assert not rest.strip() or rest.startswith("\n"), f"{member.__qualname__}: a first line of its own"
        assert not re.search(r"\b(It|They|That|Who|What) ", said), f"{member.__qualname__}: name the subject"
