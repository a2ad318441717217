"""What one client may hold of a listener: bytes, entries and time, before and after it proves who it is."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.core.clock import ManualClock
from penstock.core.errors import StoreUnavailable
from penstock.core.limits import Rate
from penstock.dialects.lmstfy.jobs import _elements
from penstock.stores.memory import MemoryStore
from penstock.web.access_tokens import TokenScope
from penstock.web.bounds import DEFAULT_BOUNDS, HttpBounds, RequestBudget
from penstock.web.connection import HttpConnection
from penstock.web.exchange import Exchange
from penstock.web.registry import ConnectionRegistry
from penstock.web.replies import TEXT, reply
from penstock.web.server import HttpServer
from penstock.web.text_cache import TextCache
from tests.store.facts import SOON
from tests.web.conftest import Served
from tests.web.test_http_protocol import SMALL, exchanged
from tests.web.wire import Client, request_bytes

ROOT = Path(__file__).parents[2]
TOKEN = "a-token-of-my-own-choice"

#: Each bound of a listener, and the test that goes beyond it.
TESTS = {
    "head": "test_a_request_beyond_the_bounds_ends_its_connection",
    "headers": "test_a_request_beyond_the_bounds_ends_its_connection",
    "unproved": "test_a_large_body_is_kept_only_for_a_valid_token",
    "discarded": "test_a_body_that_is_too_large_is_thrown_away",
    "requests": "test_the_largest_unfinished_request_gives_up",
    "requests_of_one": "test_the_largest_unfinished_request_gives_up",
    "uncounted": "test_small_requests_are_not_counted",
    "answers": "test_the_longest_unread_answer_is_given_up",
    "pipelined": "test_what_follows_many_unanswered_requests_is_not_parsed",
    "connections": "test_an_address_with_most_connections_makes_room",
    "head_time": "test_a_request_beyond_the_bounds_ends_its_connection",
    "body_time": "test_a_body_that_lacks_a_byte_has_little_time_left",
    "body_rate": "test_a_body_that_lacks_a_byte_has_little_time_left",
    "write_time": "test_an_answer_that_is_read_ends_no_other_deadline",
}


def test_every_bound_has_a_test() -> None:
    tests = "".join(
        (ROOT / "tests/web" / name).read_text()
        for name in ("test_client_budgets.py", "test_http_protocol.py")
    )
    assert set(TESTS) == {one.name for one in msgspec.structs.fields(HttpBounds)}
    assert [name for name in TESTS.values() if f"async def {name}(" not in tests] == []


# --- requests in memory --------------------------------------------------------------------------


@dataclass(eq=False)
class Request:
    """A request in memory; `size` in bytes."""

    owner: str
    size: int
    unfinished: bool = True
    proved: bool = True
    gave_up: bool = field(default=False, init=False)

    def give_up(self) -> None:
        self.gave_up, self.unfinished = True, False


@pytest.mark.parametrize(
    ("held", "new", "gives_up"),
    [
        # room for all
        ([Request("a", 40), Request("b", 40)], Request("c", 20), None),
        # too much in all: the largest unfinished one, whoever comes last
        ([Request("a", 45), Request("b", 50)], Request("c", 10), 1),
        ([Request("a", 45), Request("b", 50, unfinished=False)], Request("c", 10), 0),
        ([Request("a", 10), Request("b", 50)], Request("c", 60), -1),
        # too much of one owner: the largest of its own
        ([Request("a", 30), Request("a", 29)], Request("a", 2), 0),
        ([Request("b", 40), Request("a", 58)], Request("a", 3), 1),
        ([Request("a", 20, unfinished=False), Request("a", 38)], Request("a", 3), 1),
    ],
)
async def test_the_largest_unfinished_request_gives_up(
    held: list[Request], new: Request, gives_up: int | None
) -> None:
    budget = RequestBudget(100, 60)
    every = [*held, new]
    kept = [budget.hold(one, one.size) for one in every]
    assert [one for one in every if one.gave_up] == ([] if gives_up is None else [every[gives_up]])
    assert kept == [True] * len(held) + [not new.gave_up]
    assert budget.total == sum(one.size for one in every if not one.gave_up)
    for one in every:
        budget.hold(one, 0)
    assert (budget.total, budget._by_owner, budget._held) == (0, {}, {})


async def test_those_without_a_proof_give_up_before_one_who_holds_less() -> None:
    """Else many small requests from many addresses would make each large one fail that has a token."""
    budget = RequestBudget(100, 60)
    unproved = [Request(f"1.2.3.{n}", 9, proved=False) for n in range(11)]
    known = Request("token", 50)
    for one in (*unproved, known):
        assert budget.hold(one, one.size)
    assert not known.gave_up
    assert [one.gave_up for one in unproved] == [n < 6 for n in range(11)]  # the longest silent ones
    other = Request("other token", 60)  # together they are too much: who holds most gives up
    assert not budget.hold(other, other.size)
    assert (known.gave_up, other.gave_up) == (False, True)


async def test_a_request_that_arrives_is_not_given_up_for_smaller_ones_that_stand_still() -> None:
    budget = RequestBudget(100, 60)
    still = [Request("1.2.3.4", 2, proved=False) for _ in range(30)]
    for one in still:
        budget.hold(one, one.size)
    arriving = Request("1.2.3.4", 0, proved=False)
    for size in range(5, 50, 5):
        assert budget.hold(arriving, size)
    assert (budget.total, sum(one.gave_up for one in still)) == (59, 23)


async def test_complete_requests_fill_the_memory_only_up_to_the_bound() -> None:
    """Their answers are under way, so a new request is refused that would be too much."""
    budget = RequestBudget(100, 60)
    assert budget.hold(Request("a", 60, unfinished=False), 60)
    assert budget.hold(Request("b", 40, unfinished=False), 40)
    assert not budget.hold(Request("c", 1, unfinished=False), 1)


@dataclass
class Listener:
    """A server that answers when it is told to, and believes who sends `X-Token: NAME`."""

    bounds: HttpBounds
    asked: list[Exchange] = field(default_factory=list)
    port: int = 0

    def __post_init__(self) -> None:
        self.server = HttpServer(
            self.asked.append, body_limit=lambda _: 200_000, bounds=self.bounds, prove=self.prove
        )

    @property
    def registry(self) -> ConnectionRegistry:
        return self.server._registry

    def prove(self, exchange: Exchange, then: Any) -> None:
        token = exchange.header(b"x-token")
        if token == "later":
            asyncio.get_running_loop().call_soon(then, "later")
        else:
            then(token)

    def connection(self, address: str = "1.2.3.4") -> HttpConnection:
        made = HttpConnection(self.registry)
        made.connection_made(Transport(address))
        return made


class Transport(asyncio.Transport):
    """The other end of a connection that a test holds in its hand."""

    def __init__(self, address: str) -> None:
        super().__init__({"peername": (address, 1)})
        self.written = b""
        self.unread = 0
        self.reading, self.aborted = True, False

    def write(self, data: Any) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unread

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


def transport(connection: HttpConnection) -> Transport:
    assert isinstance(connection._transport, Transport)
    return connection._transport


def head(size: int, token: str = "t") -> bytes:
    return f"PUT /x HTTP/1.1\r\nHost: a\r\nX-Token: {token}\r\nContent-Length: {size}\r\n\r\n".encode()


async def test_a_few_large_bodies_do_not_keep_small_ones_away() -> None:
    listener = Listener(HttpBounds(requests=300_000, requests_of_one=300_000, unproved=100_000))
    large = [listener.connection() for _ in range(2)]
    for connection in large:
        connection.data_received(head(150_000) + b"x" * 149_999)
    for n in range(20):
        small = listener.connection("5.6.7.8")
        small.data_received(head(5_000) + b"x" * 5_000)
        assert len(listener.asked) == n + 1
        assert listener.asked[-1].body == b"x" * 5_000
    assert transport(large[0]).written.startswith(b"HTTP/1.1 503 ")
    assert listener.registry.budget.total <= 300_000


async def test_small_requests_are_not_counted() -> None:
    listener = Listener(DEFAULT_BOUNDS)
    for size in (10, DEFAULT_BOUNDS.uncounted, DEFAULT_BOUNDS.uncounted + 1):
        listener.connection().data_received(head(size) + b"x" * size)
    assert listener.registry.budget.total == DEFAULT_BOUNDS.uncounted + 1
    listener.asked[-1].answer(reply(200, b"", TEXT))
    assert listener.registry.budget.total == 0


async def test_an_unfinished_head_is_counted() -> None:
    listener = Listener(DEFAULT_BOUNDS)
    connection = listener.connection()
    connection.data_received(b"GET /x HTTP/1.1\r\nA: ")
    connection.data_received(b"x" * 60_000)
    assert listener.registry.budget.total == 60_000
    connection.connection_lost(None)
    assert listener.registry.budget.total == 0


async def test_a_large_body_waits_for_the_proof_of_its_sender() -> None:
    listener = Listener(DEFAULT_BOUNDS)
    connection = listener.connection()
    connection.data_received(head(100_000, "later") + b"x" * 90_000)
    assert listener.registry.budget.total < DEFAULT_BOUNDS.uncounted
    connection.data_received(b"x" * 10_000 + request_bytes("GET", "/next"))
    assert not transport(connection).reading
    await asyncio.sleep(0)
    assert transport(connection).reading
    assert listener.registry.budget._by_owner == {"later": 100_000}
    assert listener.asked[0].body == b"x" * 100_000
    listener.asked[0].answer(reply(200, b"", TEXT))
    assert listener.asked[1].path == b"/next"


async def test_a_chunked_body_is_proved_when_it_becomes_large() -> None:
    listener = Listener(DEFAULT_BOUNDS)
    connection = listener.connection()
    connection.data_received(b"PUT /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(20):
        connection.data_received(b"%x\r\n%b\r\n" % (10_000, b"x" * 10_000))
    assert listener.registry.budget.total == 0
    connection.data_received(b"0\r\n\r\n")
    (request,) = listener.asked
    assert (request.too_large, request.body, request.last) == (True, b"", False)


@pytest.mark.parametrize("size", [DEFAULT_BOUNDS.unproved + 1, DEFAULT_BOUNDS.unproved + 1_000])
async def test_a_body_that_is_complete_before_its_proof_holds_up_nothing(size: int) -> None:
    listener = Listener(DEFAULT_BOUNDS)
    connection = listener.connection()
    begin = b"PUT /x HTTP/1.1\r\nHost: a\r\nX-Token: later\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection.data_received(begin + b"%x\r\n" % size + b"x" * 60_000)
    connection.data_received(b"x" * (size - 60_000) + b"\r\n0\r\n\r\n")
    await asyncio.sleep(0)
    assert len(listener.asked[0].body) == size
    connection.data_received(request_bytes("GET", "/next"))
    listener.asked[0].answer(reply(200, b"", TEXT))
    assert listener.asked[1].path == b"/next"


async def test_no_part_of_a_body_is_kept_without_a_proof() -> None:
    listener = Listener(DEFAULT_BOUNDS)
    connection = listener.connection()
    connection.data_received(b"PUT /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    for size in (60_000, 6_000):
        connection.data_received(b"%x\r\n" % size + b"x" * size + b"\r\n")
    connection.data_received(b"0\r\n\r\n")
    assert (listener.asked[0].body, listener.asked[0].too_large) == (b"", True)


async def test_heads_of_pending_requests_and_what_waits_behind_them_count() -> None:
    listener = Listener(HttpBounds(pipelined=3))
    connection, long = listener.connection(), "/" + "x" * 10_000
    connection.data_received(request_bytes("GET", long) * 5)
    held = listener.registry.budget.total
    assert len(connection._rest) > 10_000
    assert held == sum(one.held for one in connection._pending) + len(connection._rest)
    assert 40_000 < held < 60_000
    for n in range(5):
        listener.asked[n].answer(reply(200, b"", TEXT))
    assert listener.registry.budget.total == 0


async def test_an_idle_connection_keeps_nothing_of_its_last_request() -> None:
    listener = Listener(DEFAULT_BOUNDS)
    connection = listener.connection()
    whole = request_bytes("GET", "/" + "x" * 10_000, headers=[("A", "b" * 10_000)])
    for part in (whole[:5_000], whole[5_000:]):
        connection.data_received(part)
    listener.asked.pop().answer(reply(200, b"", TEXT))
    assert (connection._line, connection._target, connection._headers) == (None, b"", [])


async def test_a_client_that_asks_first_is_told_at_once_that_its_token_is_wrong() -> None:
    listener = Listener(DEFAULT_BOUNDS)
    for token, answer in (("t", b"HTTP/1.1 100 "), ("later", b"HTTP/1.1 100 "), ("", b"")):
        given = head(100_000, token) if token else head(100_000).replace(b"X-Token: t\r\n", b"")
        connection = listener.connection()
        connection.data_received(given.replace(b"Host: a\r\n", b"Host: a\r\nExpect: 100-continue\r\n"))
        await asyncio.sleep(0)
        assert transport(connection).written[:13] == answer
    (refused,) = listener.asked
    assert (refused.too_large, refused.last) == (True, True)


async def test_what_follows_many_unanswered_requests_is_not_parsed() -> None:
    listener = Listener(DEFAULT_BOUNDS)
    connection = listener.connection()
    for n in range(100):
        connection.data_received(request_bytes("GET", f"/{n}") * 100)
        if not transport(connection).reading:
            break
    assert len(connection._pending) < 2 * DEFAULT_BOUNDS.pipelined
    assert len(connection._rest) <= DEFAULT_BOUNDS.head + 10_000
    for one in range((n + 1) * 100):
        assert listener.asked[one].path == b"/%d" % (one // 100)
        listener.asked[one].answer(reply(200, b"", TEXT))
    assert (connection._pending, connection._rest, transport(connection).reading) == ([], b"", True)


# --- time ----------------------------------------------------------------------------------------


async def test_a_body_that_lacks_a_byte_has_little_time_left() -> None:
    """Else a few clients that stop before the last byte hold their bodies for an hour."""
    bounds = HttpBounds(body_rate=1, unproved=200_000)
    connection = Listener(bounds).connection()
    connection.data_received(head(100_000) + b"x")
    first = connection.deadline
    connection.data_received(b"x" * 99_990)
    second = connection.deadline
    assert first - 90_000 > second
    connection.data_received(b"x")
    assert connection.deadline <= second
    assert second <= time.monotonic() + bounds.body_time + 10


async def test_an_answer_that_is_read_ends_no_other_deadline() -> None:
    """The deadline of a body stays when another answer of its connection was read."""
    listener = Listener(DEFAULT_BOUNDS)
    connection = listener.connection()
    connection.data_received(head(1_000) + b"x")
    begun = connection.deadline
    connection.pause_writing()
    assert connection.deadline == begun
    connection.resume_writing()
    assert connection.deadline == begun
    connection.data_received(b"x" * 999)
    assert connection.deadline > begun + 1_000_000
    connection.pause_writing()
    assert connection.deadline <= time.monotonic() + DEFAULT_BOUNDS.write_time


# --- answers, connections ------------------------------------------------------------------------


async def test_the_longest_unread_answer_is_given_up() -> None:
    listener = Listener(HttpBounds(answers=1_000))
    connections = [listener.connection() for _ in range(4)]
    for connection in connections[:3]:
        transport(connection).unread = 400
        connection.pause_writing()
    assert [transport(one).aborted for one in connections] == [True, False, False, False]
    connections[1].resume_writing()
    transport(connections[3]).unread = 400
    connections[3].pause_writing()
    assert [transport(one).aborted for one in connections] == [True, False, False, False]


async def test_a_client_that_does_not_read_gets_no_further_answers() -> None:
    listener = Listener(DEFAULT_BOUNDS)
    connection = listener.connection()
    connection.data_received(request_bytes("GET", "/1") + request_bytes("GET", "/2"))
    connection.pause_writing()
    listener.asked[0].answer(reply(200, b"", TEXT))
    assert [one.path for one in listener.asked] == [b"/1"]
    connection.resume_writing()
    assert [one.path for one in listener.asked] == [b"/1", b"/2"]


async def test_an_address_with_most_connections_makes_room() -> None:
    """Also if all of them are about to send something; others keep theirs."""
    listener = Listener(HttpBounds(connections=4))
    quiet = listener.connection("quiet")
    crowd = [listener.connection("crowd") for _ in range(3)]
    new = listener.connection("new")
    assert [transport(one).aborted for one in (quiet, *crowd, new)] == [False, True, False, False, False]
    crowd[0].connection_lost(None)
    for one in crowd[1:]:
        one.data_received(b"GET /x HTTP/1.1\r\nA")
    newer = listener.connection("newer")
    assert [transport(one).aborted for one in (quiet, *crowd[1:], new, newer)] == [
        False,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("1.2.3.4", "1.2.3.4"),
        ("", ""),
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::"),
        ("fe80::1%eth0", "fe80::"),
    ],
)
async def test_one_client_has_many_addresses_of_ipv6(address: str, network: str) -> None:
    connection = Listener(DEFAULT_BOUNDS).connection(address)
    assert (connection.address, connection.network, connection.owner) == (address, network, network)


# --- lmstfy's interface --------------------------------------------------------------------------


@pytest.fixture
async def guarded(clock: ManualClock, home: Path) -> AsyncIterator[Served]:
    """The service that needs tokens, over a store in memory."""
    store = MemoryStore(str(home), clock=clock)
    one = Served(store, clock, need_tokens=True, fixed_tokens={"ns": frozenset({TOKEN})})
    await one.start()
    yield one
    await one.stop()
    store.close()


async def native(served: Served, *scopes: str) -> str:
    tokens = served.service.backends["default"].access_tokens
    _, secret = await tokens.create("n", [TokenScope.of(text) for text in scopes])
    return secret


async def test_a_large_body_is_kept_only_for_a_valid_token(guarded: Served) -> None:
    """A wrong one gets its answer after the body, on the same connection."""
    body = b"x" * 1_000_000
    budget = guarded.service.data_server._registry.budget
    for token, status in ((TOKEN, 201), ("wrong", 401), ("", 401), (await native(guarded, "produce"), 201)):
        client = guarded.client(token)
        given = [("X-Token", token)] if token else []
        await client.write(request_bytes("PUT", "/api/ns/q", body, given)[:-1])
        asked = guarded.client()
        assert (await asked.get("/api/ns/q/size")).status == 200  # the server has read what came before
        if status == 401:
            assert budget.total == 0
        await client.write(b"x")
        assert (await client.read()).status == status
        assert (await client.get("/api/ns/q/size")).status == 200
    assert budget.total == 0


async def test_a_huge_body_without_a_valid_token_ends_its_connection(guarded: Served) -> None:
    data = b"PUT /api/ns/q/bulk HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000000\r\n\r\n["
    answer = await exchanged(guarded.port, data)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"Connection: close" in answer


async def test_a_token_that_is_known_too_late_is_not_a_body_too_large(
    guarded: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store was away when the body came, and answers now: the client may repeat its request."""
    tokens = guarded.service.tokens
    check = tokens.check

    def away(pool: str, namespace: str, token: str, then: Any) -> None:
        monkeypatch.setattr(tokens, "check", check)
        then(StoreUnavailable("away"))

    client = guarded.client(TOKEN)
    monkeypatch.setattr(tokens, "check", away)
    answer = await client.put("/api/ns/q", b"x" * 100_000)
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    assert (await client.put("/api/ns/q", b"x" * 100_000)).status == 201


async def test_a_proof_spends_nothing_of_the_rate_of_a_token(guarded: Served) -> None:
    tokens = guarded.service.backends["default"].access_tokens
    _, secret = await tokens.create("n", [TokenScope.of("produce")], rate=Rate.of("1/h"))
    client = guarded.client(secret)
    assert [(await client.put("/api/ns/q", b"x" * 100_000)).status for _ in range(2)] == [201, 429]


async def test_odd_paths_and_queries_are_not_remembered(guarded: Served) -> None:
    """Neither before a token was looked at nor after: what is kept of texts is bounded in bytes."""
    client = guarded.client(TOKEN)
    long = "y" * 50_000
    for n in range(30):
        await client.get(f"/api/{long}{n}/q")
        await client.get(f"/api/ns/{long}{n}?a={n}&" + "b&" * 5_000)
        await client.put(f"/api/ns/q?token={n}{long}", b"x", ("Host2", long[:5_000]))
    modules = [module for name, module in sys.modules.items() if name.startswith("penstock.")]
    caches = [one for module in modules for one in vars(module).values() if isinstance(one, TextCache)]
    assert len(caches) >= 8
    longest = max(len(repr(key)) for cache in caches for key in cache)
    assert longest < 2_000
    assert all(len(cache) <= cache._entries for cache in caches)


def test_a_cache_of_texts_forgets_all_when_it_is_full() -> None:
    made: list[str] = []

    def note(text: str) -> str:
        made.append(text)
        return text.upper()

    cache = TextCache(note, entries=3, longest=5)
    assert [cache[one] for one in ("a", "b", "a", "toolong", "toolong", "c", "d", "d")] == [
        *("A", "B", "A", "TOOLONG", "TOOLONG", "C", "D", "D"),
    ]
    assert made == ["a", "b", "toolong", "toolong", "c", "d"]
    assert dict(cache) == {"d": "D"}


def test_no_other_cache_remembers_what_clients_send() -> None:
    """`lru_cache` bounds the number of its entries, not their bytes."""
    found = [
        f"{path.name}: {line.strip()}"
        for folder in ("web", "dialects")
        for path in sorted((ROOT / "src/penstock" / folder).rglob("*.py"))
        for line in path.read_text().splitlines()
        if re.search(r"lru_cache|functools\.cache|@cache\b", line)
    ]
    numbers = "names.py: @functools.lru_cache"  # of a delay, and of the ten first characters of an id
    assert [one for one in found if not one.startswith(numbers)] == []


async def test_the_series_of_metrics_have_short_names(local: Served) -> None:
    """A consume request may name a namespace of any length."""
    long = "n" * 5_000
    assert (await local.client().get(f"/api/{long}/q")).status == 404
    text = (await local.admin().get("/metrics")).body
    assert b'namespace="other"' in text
    assert long.encode() not in text


# --- bulk requests -------------------------------------------------------------------------------


def test_a_bulk_request_of_many_elements_is_read_up_to_one_too_many() -> None:
    assert len(_elements(b"[" + b"0," * 1_000_000 + b"0]")) == 65


@pytest.mark.parametrize(
    "elements",
    [
        [],
        [b"1"],
        [rb'"\ud800"', rb'"\uDBFF"', rb'"\uD83D\uDE00"', rb'"\\ud800"', rb'"\\\ud800"'],
        [b"[1,[2]]", b"[]", b'{"a":[",[ "]}', rb'"[,\ud800"', b"null", b"1e999"],
        [rb'"\ud800"', b'" ,["', b"0"],
    ],
)
@pytest.mark.parametrize("form", [b"[%b]", b" \n[\t%b \r]\n"])
@pytest.mark.parametrize("comma", [b",", b" , ", b"\n\t,"])
def test_elements_keep_their_bytes(elements: list[bytes], form: bytes, comma: bytes) -> None:
    assert _elements(form % comma.join(elements)) == elements


async def test_too_many_elements_are_refused(local: Served) -> None:
    answer = await local.client().put("/api/ns/q/bulk", b"[" + b"0," * 200_000 + b"0]")
    assert (answer.status, answer.json) == (400, {"error": "too many jobs"})


async def test_a_body_that_is_too_much_is_refused_and_the_next_one_is_not() -> None:
    listener = Listener(SMALL)
    port = await listener.server.listen("127.0.0.1", 0)
    async with Client(port) as client, asyncio.timeout(SOON):
        await client.write(head(6_000) + b"x" * 5_999)
        assert (await client.rest()).startswith(b"HTTP/1.1 503 ")
    async with Client(port) as client, asyncio.timeout(SOON):
        await client.write(head(4_000) + b"x" * 4_000)
        while not listener.asked:
            await asyncio.sleep(0.001)
        listener.asked[0].answer(reply(200, b"", TEXT))
        assert (await client.read()).status == 200
    await listener.server.stop(0.1)


async def test_a_consume_request_names_a_bounded_number_of_queues(local: Served) -> None:
    client = local.client()
    many = ",".join(f"q{n}" for n in range(2_500))
    assert (await client.get(f"/api/ns/{many}")).status == 404
    answer = await client.get(f"/api/ns/{many},one")
    assert (answer.status, answer.json) == (400, {"error": "too many queues"})


async def test_a_log_shows_the_begin_of_a_path(
    local: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(refs: object) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(local.store, "get", away)
    long = "j" * 50_000
    assert (await local.client().get(f"/api/ns/q/job/{long}")).status == 500
    assert long[:100] in caplog.text
    assert long[:1_000] not in caplog.text


async def test_requests_about_unknown_queues_create_none(local: Served) -> None:
    client = local.client()
    for method, path in (
        *(("GET", "q1"), ("GET", "q2,q3?timeout=0"), ("GET", "q4/peek"), ("GET", "q5/size")),
        *(("GET", "q6/job/x"), ("DELETE", "q7/job/x"), ("PUT", "q8/deadletter"), ("GET", "q9/deadletter")),
        *(("DELETE", "q10/deadletter"), ("DELETE", "q11"), ("PUT", "q12?tries=0"), ("PUT", "q13/bulk")),
    ):
        await client.request(method, f"/api/ns/{path}")
    assert await local.store.queues() == []
