"""Requests for the comparison with lmstfy: every route with every kind of wrong input, and random work."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = ["TOKEN", "Case", "admin_cases", "fixed_cases", "limited_cases", "random_cases"]

TOKEN = "a-token-of-both-servers"
MIB = 1_048_576
#: A name of 256 bytes, but of fewer letters.
LONG = "%C3%BC" * 128


class Case(NamedTuple):
    """One request. `{NAME}` in a path stands for the id that the request saved as NAME got."""

    method: str
    path: str
    body: bytes = b""
    headers: Sequence[tuple[str, str]] = (("X-Token", TOKEN),)
    save: str = ""


NUMBERS = (
    "x",
    "",
    "-1",
    "+1",
    "%2B1",
    "1_0",
    "1.0",
    "%D9%A1",
    "1%0A",
    "4294967295",
    "4294967296",
    "007",
    "0x1",
)
PATHS = (  # as text, to be read
    """
    / /api /api/ /api/ns /api/ns/ /api/ns/q/ /api//q /api//q/peek /api/ns//peek /api/ns/q/job /api/ns/q/job/
    /api/ns/q/job/x /api/ns/q/job/x/ /api/ns/q/job/x/y /api/ns/q/job// /api/ns/q/bulk /api/ns/q/bulk/
    /api/ns/q/peek /api/ns/q/peek/ /api/ns/q/Peek /api/ns/q/size /api/ns/q/size/ /api/ns/q/deadletter
    /api/ns/q/deadletter/ /api/ns/q/deadletter/size /api/ns/q/deadletter/size/ /api/ns/q/x /api/ns/q//
    /api/ns/a%2Fb /api/ns/a%2Cb /api/ns/_q /api/ns/_q/peek /api/ns/q.x /api/ns/q%20x /api/n.s/q /api/ns/,
    /api/ns/,, /api/ns/a,b /api/ns/a,b/size /api/ns/q%0A /api/ns/q%C3%A9 /API/ns/q //api/ns/q /api/ns/../q
    /api/ns/./q /ping /metrics /api/ns/q/job/%2F /api/ns/q/job/a%20b
""".split()  # noqa: SIM905  (a list of literals is longer than it is clear)
)
BULKS = (
    *(
        b"",
        b"{}",
        b'"x"',
        b"[1]x",
        b"[1,]",
        b"[",
        b"[]",
        b" null ",
        b"nul",
        b"[1,2]",
        b"[01]",
        b"[1.]",
        b"[+1]",
    ),
    *(b"[NaN]", b'["\\x"]', b'["\xff"]', b'["\x01"]', b"[tru]", b"[.5]", b"[-]", b"[1e]", b"\xef\xbb\xbf[1]"),
    *(
        b"[1]\n",
        b'["\\ud800"]',
        b'[{"a":1,}]',
        b"[{a:1}]",
        b"[1 2]",
        b'["a\nb"]',
        b'[{"a" 1}]',
        b"[" * 20_000,
    ),
    b' [ 1 , {"a" : 1e400} ] ',
    b"[" + b",".join([b"1"] * 65) + b"]",
    b'["' + b"x" * MIB + b'"]',
)


def fixed_cases() -> Iterator[Case]:
    """Each kind of wrong input once."""
    for method in ("GET", "PUT", "DELETE", "POST", "PATCH", "OPTIONS"):
        for path in [
            *PATHS,
            f"/api/ns/{'q' * 255}",
            f"/api/ns/{'q' * 256}",
            f"/api/{'n' * 256}/q",
            f"/api/{LONG}/q",
        ]:
            yield Case(method, path)
    for text in NUMBERS:
        for name in ("delay", "ttl", "tries"):
            yield Case("PUT", f"/api/ns/numbers?{name}={text}", b"x")
        for name in ("ttr", "timeout", "count", "freeze_tries"):
            if (name, text) not in (("timeout", "4294967295"), ("timeout", "007")):
                yield Case("GET", f"/api/ns/nothing?{name}={text}")
        for method in ("PUT", "DELETE", "GET"):
            for name in ("limit", "ttl"):
                yield Case(method, f"/api/ns/dead/deadletter?{name}={text}")
    for query in (
        "ttl=4&delay=5",
        "ttl=5&delay=5",
        "ttl=5&ttl=x",
        "TTL=x",
        "ttl=1;x",
        "ttl=%zz",
        "=x",
        "ttl",
        "a=b?c",
    ):
        yield Case("PUT", f"/api/ns/queries?{query}", b"x")
    for body in BULKS:
        yield Case("PUT", "/api/ns/bulk/bulk", body)
    for size in (0, MIB, MIB + 1):
        yield Case("PUT", "/api/ns/sizes", b"x" * size)
    yield from _unusual()
    yield from _tokens()
    yield from _attributes()


def _unusual() -> Iterator[Case]:
    """What is spelled in an unusual way, and what the parser of a server may know in another way."""
    for path in (
        "/api/ns/unusual?x=ž&delay=0",
        "http://localhost/api/ns/unusual",
        "/api/ns/ž",
        "http://localhost",
    ):
        yield Case("PUT", path, b"x")
    for method in ("FOO", "get", "PLAY", "PURGE", "M-SEARCH", "X-!#$%&'*+.^_`|~"):
        yield Case(method, "/api/ns/unusual", b"x")
    for given in (f"{TOKEN} ", f"{TOKEN}\t ", f" \t{TOKEN}"):
        yield Case("PUT", "/api/ns/unusual", b"x", [("X-Token", given)])


def _tokens() -> Iterator[Case]:
    for token in (
        None,
        "",
        "wrong",
        f"nopool:{TOKEN}",
        f"default:{TOKEN}",
        f":{TOKEN}",
        f"{TOKEN}:",
        "a:b:c",
    ):
        headers = [] if token is None else [("X-Token", token)]
        for method, path in [
            ("PUT", "/api/ns/t"),
            ("GET", "/api/ns/t"),
            ("GET", "/api/ns/t/size"),
            ("GET", "/api/other/t"),
            ("GET", "/api/ns/t/deadletter/size"),
            ("GET", f"/api/ns/t/peek?token={TOKEN}"),
        ]:
            yield Case(method, path, b"x" if method == "PUT" else b"", headers)


def _attributes() -> Iterator[Case]:
    yes = ("Enable-Job-Version", "YES")
    for n, headers in enumerate(
        [
            [yes, ("Job-Attr-Hello", "World"), ("job-attr-X-y", ""), ("JOB-ATTR-ABC", "é<>")],
            [("Enable-Job-Version", "true"), ("Job-Attr-A", "b")],
            [yes, ("Job-Attr-A", "v" * 126 + "\N{EURO SIGN}"), ("Job-Attr-B", "v" * 127 + "\u00e9")],
            [yes, ("Job-Attr-A", "1"), ("Job-Attr-A", "2"), ("Job-Attr-" + "k" * 40, "v" * 200)],
            [yes, *((f"Job-Attr-{n}", "v") for n in range(17))],
            [yes, *((f"Job-Attr-{n}", "v" if n else "") for n in range(17))],
        ]
    ):
        given = [("X-Token", TOKEN), *headers]
        yield Case("PUT", "/api/ns/attributes?ttl=60", b"x", given, save=f"attributes{n}")
        yield Case("GET", f"/api/ns/attributes/job/{{attributes{n}}}")
        yield Case("GET", "/api/ns/attributes/peek")
        yield Case("GET", "/api/ns/attributes?count=2")


def admin_cases() -> Iterator[Case]:
    """Requests for the admin listener."""
    form = [("Content-Type", "application/x-www-form-urlencoded")]
    given = "description=d&token=bbbbbbbbbbbbbbbbbbbbbbbb"
    for method, path in [
        *(("GET", path) for path in ("/pools", "/pools/", "/version", "/version/", "/nope", "/info?pool=no")),
        *(
            ("POST", f"/token/n2{query}")
            for query in ("", "?description=d&token=short", "?description=d&pool=no")
        ),
        *(("POST", f"/token/{name}?description=d") for name in ("n.2", "n" * 256, LONG)),
        *(("POST", f"/token/n6?description=d&token={'%C3%BC' * 9}{end}") for end in ("x", "xy")),
        *(("POST", f"/token/n2?{given}") for _ in range(2)),
        *(("GET", f"/token/n2{query}") for query in ("", "?pool=default", "?pool=no", "/")),
        *(("DELETE", f"/token/n2/{token}") for token in ("bbbbbbbbbbbbbbbbbbbbbbbb", "x", "no:x")),
        *(("GET", path) for path in ("/token/n2", "/token/n3", "/token/", "/token")),
        ("DELETE", "/token//bbbbbbbbbbbbbbbbbbbbbbbb"),
        *(("GET", path) for path in ("/token//x", "/token//x/limit", "/token//")),
        ("POST", "/token//"),
        ("PUT", "/token/n2"),
        ("HEAD", "/pools"),
        ("GET", "/accesslog"),
        *(("POST", f"/accesslog{query}") for query in ("", "?status=", "?status=on", "?status=ENABLE")),
        *(("POST", f"/accesslog?status={status}") for status in ("enable", "enable", "disable")),
        *((method, "/accesslog") for method in ("GET", "PUT", "DELETE")),
    ]:
        yield Case(method, path, b"", [])
    yield from _limiters()
    yield Case("POST", "/token/n4", b"description=a+b&token=default:cccccccccccccccccccccccc", form)
    yield Case(
        "POST", "/token/n5?description=query&token=dddddddddddddddddddddddd", b"description=form", form
    )
    for name in ("n4", "n5"):
        yield Case("GET", f"/token/{name}", b"", [])


def _limiters() -> Iterator[Case]:
    limit = "/token/n2/llllllllllllllllllllllll/limit"
    bodies = (
        *(b'{"read":1,"Write":2,"interval":3,"other":1} x', b'{"read":1}', b'{"read":-1,"interval":1}'),
        *(
            b'{"read":1,"interval":-1}',
            b"null",
            b"{}",
            b'{"interval":1}',
            b'{"read":null,"write":1,"interval":1}',
        ),
    )
    for method in ("GET", "DELETE", "PUT", "POST", "GET", "DELETE", "GET", "PATCH"):
        for body in bodies if method in ("PUT", "POST") else [b""]:
            yield Case(method, limit, body, [])
    for path in ("/limits", "/limits/", "/limits?force_update=t", f"{limit}/", f"{limit}/x"):
        yield Case("GET", path, b"", [])
    yield Case("POST", limit, b'{"write":2,"interval":60}', [])
    yield Case("GET", "/limits", b"", [])
    yield Case("DELETE", "/token/n2/llllllllllllllllllllllll", b"", [])
    yield Case("GET", limit, b"", [])


def limited_cases() -> Iterator[tuple[Case, bool]]:
    """Requests of a token with limits, and whether they are for the admin listener."""
    limit = f"/token/ns/{TOKEN}/limit"
    yield Case("PUT", limit, b'{"read":2,"write":3,"interval":600}', []), True
    for n in range(5):
        yield Case("PUT", "/api/ns/limited", b"%d" % n), False
        yield Case("GET", "/api/ns/nothing"), False
        yield Case("PUT", "/api/ns/limited?tries=x", b"x"), False
        yield Case("PUT", "/api/ns/limited/bulk", b"[]"), False
    for _ in range(4):
        yield Case("GET", "/api/ns/limited"), False
    yield Case("GET", "/api/ns/limited/size"), False
    yield Case("DELETE", limit, b"", []), True
    yield Case("PUT", "/api/ns/limited", b"x"), False


def random_cases(seed: int, number: int) -> Iterator[Case]:
    """Random work on a few queues, whose answers depend on each other."""
    drawn = random.Random(seed)
    queues = [f"r{seed}-{n}" for n in range(3)]
    known: list[tuple[str, str]] = [(queues[0], "none")]
    for n in range(number):
        queue, chance = drawn.choice(queues), drawn.random()
        if chance < 0.3:
            terms = f"ttl={drawn.choice([0, 3_000, 60_000])}&tries={drawn.choice([1, 2, 5])}"
            terms += f"&delay={drawn.choice([0, 0, 0, 500])}"
            known.append((queue, f"job{seed}-{n}"))
            yield Case("PUT", f"/api/ns/{queue}?{terms}", b"%d" % n, save=known[-1][1])
        elif chance < 0.35:
            yield Case("PUT", f"/api/ns/{queue}/bulk?ttl=5000", b"[%d, {}]" % n)
        elif chance < 0.6:
            chosen = ",".join(drawn.sample(queues, drawn.choice([1, 1, 2, 3])))
            yield Case("GET", f"/api/ns/{chosen}?ttr=600{drawn.choice(['', '', '&count=1', '&count=3'])}")
        elif chance < 0.8:
            queue, name = drawn.choice(known)
            yield Case("GET", f"/api/ns/{queue}/job/{{{name}}}")
        elif chance < 0.98:
            yield Case("GET", f"/api/ns/{queue}/{drawn.choice(['peek', 'size', 'deadletter'])}")
        else:
            yield Case("DELETE", f"/api/ns/{queue}")
