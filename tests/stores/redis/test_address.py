"""A URL or a client becomes an address, or gives a one-line error without secrets."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import redis
import redis.asyncio

from penstock.errors import ConfigError
from penstock.stores.redis.wire.address import Address, Node


@pytest.mark.parametrize(
    ("url", "facts"),
    [
        ("redis://", {"mode": "single", "nodes": (Node("localhost", 6379),), "db": 0}),
        ("redis://h:7000/3", {"nodes": (Node("h", 7000),), "db": 3}),
        ("redis://[::1]:7000", {"nodes": (Node("::1", 7000),)}),
        ("redis://u%40x:p%2Fw@h", {"username": "u@x", "password": "p/w"}),
        ("redis://:pw@h", {"username": "", "password": "pw"}),
        ("rediss://h", {"tls": True, "options": {"ssl_cert_reqs": "required", "ssl_check_hostname": True}}),
        (
            "rediss://h?ssl_ca_certs=/ca.pem&ssl_check_hostname=no&ssl_cert_reqs=none",
            {"options": {"ssl_ca_certs": "/ca.pem", "ssl_cert_reqs": "none", "ssl_check_hostname": False}},
        ),
        ("unix:///run/r.sock?db=2", {"mode": "single", "nodes": (Node("/run/r.sock", 0),), "db": 2}),
        ("unix://u:p@/run/r.sock", {"nodes": (Node("/run/r.sock", 0),), "username": "u", "password": "p"}),
        (
            "redis+sentinel://a,b:1,c/main/2",
            {
                "mode": "sentinel",
                "nodes": (Node("a", 26379), Node("b", 1), Node("c", 26379)),
                "master": "main",
                "db": 2,
            },
        ),
        (
            "rediss+sentinel://:pw@a/main?sentinel_username=su&sentinel_password=sp",
            {"tls": True, "sentinel_tls": True, "sentinel_username": "su", "sentinel_password": "sp"},
        ),
        ("redis+cluster://a:1,b", {"mode": "cluster", "nodes": (Node("a", 1), Node("b", 6379))}),
        ("rediss+cluster://a", {"mode": "cluster", "tls": True}),
        (
            "redis://h?timeout=250ms&connect_timeout=1s&wait_replicas=2&wait_timeout=3s&prefix=jobs",
            {
                "timeout": 250,
                "connect_timeout": 1_000,
                "wait_replicas": 2,
                "wait_timeout": 3_000,
                "prefix": "jobs",
            },
        ),
    ],
)
def test_a_url_says_where(url: str, facts: dict[str, Any]) -> None:
    address = Address.from_url(url)
    assert {name: getattr(address, name) for name in facts} == facts


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("reddis://h", r"not the URL of a Redis \(did you mean 'redis'\?\)"),
        ("redis://h?timout=5s", r"no option 'timout' \(did you mean 'timeout'\?\)"),
        ("redis://h?timeout=soon", "timeout='soon' is not a duration"),
        ("redis://h?timeout=0s", "a timeout must be longer than 0"),
        ("redis://h?wait_replicas=many", "wait_replicas='many' is not a number"),
        ("redis://h?prefix=a b", "prefix='a b' cannot be a prefix"),
        ("redis://h?prefix={a}", "cannot be a prefix"),
        ("redis://h?timeout=5s&timeout=5s", "gives 'timeout' twice"),
        ("redis://h?timeout", "as name=value pairs"),
        ("redis://h?ssl_ca_certs=/ca.pem", "write rediss://"),
        ("rediss://h?ssl_cert_reqs=requird", r"did you mean 'required'"),
        ("rediss://h?ssl_check_hostname=maybe", "neither true nor false"),
        ("redis://h/zero", "'zero' is not the number of a database"),
        ("redis://h/1/2", "must be a database's number"),
        ("redis://h:port", "'h:port' is not HOST or HOST:PORT"),
        ("redis://h:99999", "is not HOST or HOST:PORT"),
        ("redis://a,b", r"names 2 servers: write redis\+cluster://"),
        ("redis+sentinel://a,b", "does not say which master"),
        ("redis+cluster://a/1", "a cluster has no databases"),
        ("redis://h#1", "write %23"),
        ("redis://secret@h", "gives no password"),
        ("unix://run/r.sock", "names no socket"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Address.from_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:s3cret@h:1/x",
        "redis://u:s3cret@h?timeout=x",
        "redis://s3cret@h",
        "redis+sentinel://h?sentinel_password=s3cret",
        "redis://:s3c/s3cret@h#",
    ],
)
def test_a_refusal_shows_no_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Address.from_url(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://u:s3cret@h", "redis://h:6379"),
        ("rediss://:s3cret@h:1/2", "rediss://h:1/2"),
        ("unix://:s3cret@/r.sock?db=1", "unix:///r.sock?db=1"),
        (
            "redis+sentinel://:s3cret@a,b/main?sentinel_password=s3cret",
            "redis+sentinel://a:26379,b:26379/main",
        ),
        ("redis+cluster://u:s3cret@a,b:1", "redis+cluster://a:6379,b:1"),
    ],
)
def test_an_address_shows_no_password(url: str, shown: str) -> None:
    address = Address.from_url(url)
    assert address.url == shown
    assert "s3cret" not in repr(address)


def test_an_option_in_code_goes_before_that_of_the_url() -> None:
    address = Address.from_url("redis://h?prefix=a&timeout=1s", prefix="b")
    assert (address.prefix, address.timeout) == ("b", 1_000)
    with pytest.raises(ConfigError, match=r"no option 'prefx' \(did you mean 'prefix'\?\)"):
        Address.from_url("redis://h", prefx="b")


def test_a_client_says_where() -> None:
    with contextlib.closing(
        redis.Redis("h", 7000, db=2, username="u", password="p", decode_responses=True)
    ) as client:
        address = Address.of(client, prefix="jobs")
    assert (address.mode, address.nodes, address.db) == ("single", (Node("h", 7000),), 2)
    assert (address.username, address.password, address.prefix) == ("u", "p", "jobs")
    assert not address.tls


def test_an_async_client_says_where() -> None:
    address = Address.of(redis.asyncio.Redis.from_url("rediss://:p@h:7000/1?ssl_ca_certs=/ca.pem"))
    assert (address.nodes, address.db, address.tls) == ((Node("h", 7000),), 1, True)
    assert address.options["ssl_ca_certs"] == "/ca.pem"


def test_a_client_of_a_unix_socket_says_where() -> None:
    with contextlib.closing(redis.Redis(unix_socket_path="/r.sock")) as client:
        assert Address.of(client).nodes == (Node("/r.sock", 0),)


def test_what_is_neither_a_url_nor_a_client_is_refused() -> None:
    with pytest.raises(ConfigError, match="object is neither a URL nor a redis-py client"):
        Address.of(object())
