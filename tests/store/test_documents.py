"""Documents by kind and name, with revisions and expiry; and bounded logs."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.clock import ManualClock
from penstock.errors import ConfigError
from penstock.stores.contract import (
    LARGEST_DOCUMENT,
    MOST_DOCUMENTS,
    Document,
    DocumentChange,
    DocumentStatus,
    QuotaRequest,
    QuotaTaken,
    Store,
    WrittenDocument,
)
from tests.cases import each
from tests.store.facts import DAY, MINUTE, OpenStore

APPLIED, CONFLICT, FULL = DocumentStatus.APPLIED, DocumentStatus.CONFLICT, DocumentStatus.FULL


async def put(store: Store, name: str, body: bytes = b"x", **facts: int) -> WrittenDocument:
    (answer,) = await store.change_documents("tokens", [DocumentChange(name, body, **facts)])
    return answer


async def remove(store: Store, name: str, expected: int | None = None) -> WrittenDocument:
    (answer,) = await store.change_documents("tokens", [DocumentChange(name, None, expected)])
    return answer


async def listed(store: Store, kind: str = "tokens", *, limit: int = 1_000) -> list[Document]:
    """All documents of a kind, page by page."""
    found: list[Document] = []
    after: str | None = None
    while True:
        page = await store.documents(kind, after=after, limit=limit)
        assert len(page.documents) <= limit
        found += page.documents
        if (after := page.next) is None:
            return found


async def names(store: Store, kind: str = "tokens", *, limit: int = 1_000) -> list[str]:
    return [one.name for one in await listed(store, kind, limit=limit)]


# ── documents ──


async def test_a_document_comes_back_as_it_was_put(store: Store, clock: ManualClock) -> None:
    body = bytes(range(256))
    written = await put(store, "näme /*?{}", body, expires_in=MINUTE)
    assert written == WrittenDocument(APPLIED, 1)
    page = await store.documents("tokens")
    now = clock.now()
    assert page.documents == [Document("näme /*?{}", body, 1, now, now + MINUTE)]
    assert (page.version, page.next, page.now) == (1, None, now)


async def test_a_kind_without_documents_is_empty(store: Store) -> None:
    page = await store.documents("tokens")
    assert (page.documents, page.version, page.next) == ([], 0, None)
    assert await store.document_versions(["tokens", "limits"]) == [0, 0]
    assert await store.document_versions([]) == []


async def test_large_expired_documents_hide_none_behind_them(store: Store, clock: ManualClock) -> None:
    for n in range(70):
        await put(store, f"a{n:03}", bytes(40_000), expires_in=1_000)
    await put(store, "z")
    clock.advance(1_000)
    assert await names(store) == ["z"]
    assert await names(store, limit=1) == ["z"]


async def test_each_change_raises_the_version_of_its_kind_alone(store: Store) -> None:
    await put(store, "a")
    await put(store, "b")
    await put(store, "a", b"y")
    assert await store.document_versions(["tokens", "limits"]) == [3, 0]
    await remove(store, "b")
    assert await store.document_versions(["tokens"]) == [4]
    await remove(store, "b")  # it changes nothing
    await put(store, "a", expected=1)
    assert await store.document_versions(["tokens"]) == [4]


async def test_documents_are_listed_by_kind_in_the_order_of_their_names(store: Store) -> None:
    for name in ("b", "a", "ä", "B", "aa", "10", "9"):
        await put(store, name)
    await store.change_documents("limits", [DocumentChange("elsewhere", b"")])
    assert await names(store) == ["10", "9", "B", "a", "aa", "b", "ä"]
    assert await names(store, limit=2) == ["10", "9", "B", "a", "aa", "b", "ä"]
    assert await names(store, "limits") == ["elsewhere"]


async def test_a_change_of_another_revision_is_a_conflict(store: Store) -> None:
    first = await put(store, "a", b"1", expected=0)
    assert first == WrittenDocument(APPLIED, 1)
    assert await put(store, "a", b"2", expected=0) == WrittenDocument(CONFLICT, 1)
    assert await put(store, "a", b"3", expected=1) == WrittenDocument(APPLIED, 2)
    assert await put(store, "a", b"4", expected=1) == WrittenDocument(CONFLICT, 2)
    assert await remove(store, "a", expected=1) == WrittenDocument(CONFLICT, 2)
    assert [one.body for one in await listed(store)] == [b"3"]
    assert await remove(store, "a", expected=2) == WrittenDocument(APPLIED, 0)
    assert await put(store, "a", b"5", expected=2) == WrittenDocument(CONFLICT, 0)
    assert await listed(store) == []


async def test_a_revision_never_comes_back(store: Store) -> None:
    first = await put(store, "a")
    await remove(store, "a")
    again = await put(store, "a")
    assert again.revision > first.revision


async def test_of_two_that_create_a_document_one_does(open_store: OpenStore) -> None:
    stores = [open_store() for _ in range(4)]
    answers = await asyncio.gather(
        *(put(store, "a", b"%d" % n, expected=0) for n, store in enumerate(stores))
    )
    assert sorted(answer.status for answer in answers) == [APPLIED, CONFLICT, CONFLICT, CONFLICT]
    winner = next(n for n, answer in enumerate(answers) if answer.status is APPLIED)
    assert [one.body for one in await listed(stores[0])] == [b"%d" % winner]


async def test_the_changes_of_a_call_are_applied_in_order(store: Store) -> None:
    answers = await store.change_documents(
        "tokens",
        [
            DocumentChange("a", b"1", 0),
            DocumentChange("a", b"2", 0),
            DocumentChange("b", b"3"),
            DocumentChange("a", None, 1),
            DocumentChange("a", b"4", 0),
            DocumentChange("nobody", None),
            DocumentChange("nobody", None, 7),
        ],
    )
    assert [answer.status for answer in answers] == [
        APPLIED,
        CONFLICT,
        APPLIED,
        APPLIED,
        APPLIED,
        APPLIED,
        CONFLICT,
    ]
    assert [(one.name, one.body) for one in await listed(store)] == [("a", b"4"), ("b", b"3")]
    assert await store.change_documents("tokens", []) == []


async def test_a_document_past_its_expiry_does_not_exist(store: Store, clock: ManualClock) -> None:
    await put(store, "short", expires_in=MINUTE)
    await put(store, "long")
    clock.advance(MINUTE - 1)
    assert await names(store) == ["long", "short"]
    clock.advance(1)
    assert await names(store) == ["long"]
    assert (await put(store, "short", expected=1)).status is CONFLICT
    assert await put(store, "short", expected=0) == WrittenDocument(APPLIED, 3)
    clock.advance(DAY)
    assert await names(store) == ["long", "short"]


async def test_a_kind_is_bounded_and_expired_documents_make_room(store: Store, clock: ManualClock) -> None:
    many = [DocumentChange(f"{n:05}", b"", None, MINUTE if n < 2 else None) for n in range(MOST_DOCUMENTS)]
    answers = await store.change_documents("tokens", many)
    assert {answer.status for answer in answers} == {APPLIED}
    assert await put(store, "more") == WrittenDocument(FULL, 0)
    assert (await put(store, "00007", b"new")).status is APPLIED
    clock.advance(MINUTE)
    assert (await put(store, "more")).status is APPLIED
    found = await names(store)
    assert (len(found), found[0], found[-1]) == (MOST_DOCUMENTS - 1, "00002", "more")


async def test_expired_documents_leave_the_store(store: Store, clock: ManualClock) -> None:
    """Not only when the kind is full: 10 000 may have 640 MB. A clock that is set back shows which stay."""
    began = clock.now()
    await put(store, "kept")
    await put(store, "lasts", expires_in=DAY)
    for n in range(5):
        many = [DocumentChange(f"{n}/{m}", b"x", None, MINUTE) for m in range(100)]
        await store.change_documents("tokens", many)
        clock.advance(MINUTE)
    await put(store, "new", expires_in=MINUTE)
    await put(store, "lasts")
    clock.set_wall(began)
    found = await names(store)
    assert {"kept", "lasts", "new"} <= set(found)
    assert len(found) <= 203, "what is still there of 500 expired ones"
    clock.set_wall(began + 2 * DAY)
    assert await names(store) == ["kept", "lasts"]


async def test_large_documents_are_listed(store: Store) -> None:
    for n in range(30):
        await put(store, f"{n:02}", b"x" * 48_000)
    assert [len(one.body) for one in await listed(store)] == [48_000] * 30


@each("wrong", ["", "A", "a/b", "a" * 65, "{a}", "ä", "a\n", "-a"])
async def test_a_wrong_kind_is_refused(store: Store, wrong: str) -> None:
    with pytest.raises(ConfigError, match="kind"):
        await store.documents(wrong)
    with pytest.raises(ConfigError, match="kind"):
        await store.change_documents(wrong, [])
    with pytest.raises(ConfigError, match="kind"):
        await store.document_versions([wrong])
    with pytest.raises(ConfigError, match="kind"):
        await store.append_log(wrong, [])
    with pytest.raises(ConfigError, match="kind"):
        await store.read_log(wrong)


@each("name, body", [("", b""), ("n" * 513, b""), ("a", b"x" * (LARGEST_DOCUMENT + 1))])
async def test_a_document_that_is_too_long_changes_nothing(store: Store, name: str, body: bytes) -> None:
    with pytest.raises(ConfigError, match="bytes"):
        await store.change_documents("tokens", [DocumentChange("good", b""), DocumentChange(name, body)])
    assert await listed(store) == []


async def test_documents_belong_to_their_namespace(open_store: OpenStore) -> None:
    a, b = open_store(namespace="a"), open_store(namespace="b")
    await put(a, "token")
    await a.append_log("audit", [b"entry"])
    assert await listed(b) == []
    assert await b.document_versions(["tokens"]) == [0]
    assert (await b.read_log("audit")).entries == []
    assert await b.queues() == []


# ── logs ──


async def bodies(store: Store, limit: int = 100) -> list[bytes]:
    """All entries, newest first, page by page."""
    found: list[bytes] = []
    before: int | None = None
    while True:
        page = await store.read_log("audit", before=before, limit=limit)
        found += [entry.body for entry in page.entries]
        if (before := page.next) is None:
            return found


async def test_a_log_is_read_from_its_newest_entry_on(store: Store, clock: ManualClock) -> None:
    assert await store.append_log("audit", [b"one", b"two"]) == 2
    first = clock.now()
    clock.advance(5)
    assert await store.append_log("audit", [bytes(range(256))]) == 3
    page = await store.read_log("audit")
    assert [(entry.number, entry.at) for entry in page.entries] == [(3, first + 5), (2, first), (1, first)]
    assert [entry.body for entry in page.entries] == [bytes(range(256)), b"two", b"one"]
    assert page.next is None
    assert await bodies(store, limit=1) == await bodies(store, limit=2) == await bodies(store)


async def test_a_log_keeps_its_newest_entries(store: Store) -> None:
    for n in range(7):
        await store.append_log("audit", [b"%d" % n, b"%d!" % n], keep=5)
    assert await bodies(store) == [b"6!", b"6", b"5!", b"5", b"4!"]
    assert await store.append_log("audit", [], keep=2) == 14
    assert await bodies(store, limit=1) == [b"6!", b"6"]


async def test_new_entries_do_not_shift_the_pages_of_a_log(store: Store) -> None:
    await store.append_log("audit", [b"%d" % n for n in range(4)])
    page = await store.read_log("audit", limit=2)
    await store.append_log("audit", [b"new"], keep=4)
    rest = await store.read_log("audit", limit=9, before=page.next)
    assert [entry.body for entry in rest.entries] == [b"1"]


async def test_a_log_that_is_not_there_is_empty(store: Store) -> None:
    page = await store.read_log("audit", before=5)
    assert (page.entries, page.next) == ([], None)
    assert await store.append_log("audit", []) == 0


async def test_an_entry_that_is_too_long_appends_nothing(store: Store) -> None:
    with pytest.raises(ConfigError, match="bytes"):
        await store.append_log("audit", [b"good", b"x" * (LARGEST_DOCUMENT + 1)])
    assert await bodies(store) == []


# ── quotas ──


async def quota(store: Store, amount: int, *, limit: int = 10, name: str = "token") -> QuotaTaken:
    (answer,) = await store.take_quota([QuotaRequest(name, amount, limit, MINUTE)])
    return answer


async def test_a_quota_gives_its_limit_in_each_window(store: Store, clock: ManualClock) -> None:
    assert await quota(store, 4) == QuotaTaken(4, MINUTE)
    clock.advance(MINUTE // 2)
    assert await quota(store, 4) == QuotaTaken(4, MINUTE // 2)
    assert await quota(store, 4) == QuotaTaken(2, MINUTE // 2)
    assert await quota(store, 4) == QuotaTaken(0, MINUTE // 2)
    assert await quota(store, 1, name="other") == QuotaTaken(1, MINUTE)
    clock.advance(MINUTE // 2 - 1)
    assert await quota(store, 1) == QuotaTaken(0, 1)
    clock.advance(1)
    assert await quota(store, 99) == QuotaTaken(10, MINUTE)


async def test_nodes_share_a_quota(open_store: OpenStore) -> None:
    stores = [open_store() for _ in range(4)]
    answers = await asyncio.gather(*(quota(store, 1) for store in stores for _ in range(5)))
    assert sum(answer.taken for answer in answers) == 10
    assert (await quota(open_store(namespace="other"), 1)).taken == 1


async def test_a_limit_that_changes_applies_at_once(store: Store) -> None:
    await quota(store, 5)
    assert (await quota(store, 5, limit=3)).taken == 0
    assert (await quota(store, 50, limit=20)).taken == 15


async def test_a_call_takes_from_several_quotas_in_order(store: Store, clock: ManualClock) -> None:
    requests = [QuotaRequest(name, 2, 3, MINUTE) for name in ("a", "b/ä {}", "a", "a", "\ud800")]
    assert [answer.taken for answer in await store.take_quota(requests)] == [2, 2, 1, 0, 2]
    assert await store.take_quota([]) == []
    with pytest.raises(ConfigError, match="bytes"):
        await store.take_quota([QuotaRequest("good", 1, 1, 1), QuotaRequest("", 1, 1, 1)])
    clock.set_wall(clock.now() - DAY)  # a window never lasts longer than it was asked for
    assert await quota(store, 1, name="a") == QuotaTaken(1, MINUTE)
