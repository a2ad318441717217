"""Tables of error replies and driver exceptions, and what the store does with each."""

from __future__ import annotations

import inspect
import re
import socket
import ssl

import pytest
import redis.exceptions

from penstock.errors import StoreCorrupt, StoreError, StoreFull, StoreUnavailable
from penstock.stores.redis.wire.faults import Step, cannot_connect, lost_because, read

WHERE = "redis://h:6379"


@pytest.mark.parametrize(
    ("text", "step", "error"),
    [
        ("NOSCRIPT No matching script. Please use EVAL.", Step.LOAD, StoreUnavailable),
        ("LOADING Redis is loading the dataset in memory", Step.LATER, StoreUnavailable),
        ("BUSY Redis is busy running a script.", Step.LATER, StoreUnavailable),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Step.LATER, StoreUnavailable),
        ("NOREPLICAS Not enough good replicas to write.", Step.LATER, StoreUnavailable),
        ("ERR max number of clients reached", Step.LATER, StoreUnavailable),
        ("CLUSTERDOWN Hash slot not served", Step.ELSEWHERE, StoreUnavailable),
        ("MASTERDOWN Link with MASTER is down", Step.ELSEWHERE, StoreUnavailable),
        ("READONLY You can't write against a read only replica.", Step.ELSEWHERE, StoreUnavailable),
        ("OOM command not allowed when used memory > 'maxmemory'.", Step.FINAL, StoreFull),
        ("MISCONF Redis is configured to save RDB snapshots", Step.FINAL, StoreFull),
        ("WRONGTYPE Operation against a key", Step.FINAL, StoreCorrupt),
        ("NOAUTH Authentication required.", Step.FINAL, StoreError),
        ("WRONGPASS invalid username-password pair", Step.FINAL, StoreError),
        ("NOPERM this user has no permissions", Step.FINAL, StoreError),
        ("DENIED Redis is running in protected mode", Step.FINAL, StoreError),
        ("ERR unknown command", Step.FINAL, StoreError),
        # as Redis 6.2 wraps what went wrong inside a script
        (
            "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: -READONLY You can't",
            Step.ELSEWHERE,
            StoreUnavailable,
        ),
        ("ERR Error running script (call to f_1): @user_script:1: -OOM command", Step.FINAL, StoreFull),
    ],
)
def test_an_error_reply_asks_for_something(text: str, step: Step, error: type[StoreError]) -> None:
    meaning = read(text, WHERE)
    assert meaning.step is step
    assert type(meaning.error) is error
    assert WHERE in str(meaning.error)


def test_a_redirection_names_slot_and_node() -> None:
    moved = read("MOVED 3999 127.0.0.1:6381", WHERE)
    assert (moved.step, moved.slot, moved.node) == (Step.MOVED, 3999, ("127.0.0.1", 6381))
    asked = read("ASK 3999 ::1:6381", WHERE)
    assert (asked.step, asked.node) == (Step.ASK, ("::1", 6381))
    assert read("MOVED 3999 :6381", WHERE).node == ("", 6381)


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (ConnectionRefusedError(111, "no"), StoreUnavailable, r"\(connection refused\): is it running\?"),
        (TimeoutError(), StoreUnavailable, r"no connection within 2 s"),
        (
            socket.gaierror(-2, "Name or service not known"),
            StoreUnavailable,
            "the host name does not resolve",
        ),
        (ConnectionResetError(104, "Connection reset by peer"), StoreUnavailable, "Connection reset by peer"),
        (PermissionError(13, "Permission denied"), StoreError, "check its permissions"),
        (FileNotFoundError(2, "no file"), StoreError, "a file of the TLS options"),
        (ssl.SSLCertVerificationError("x"), StoreError, "TLS failed, its certificate is not trusted"),
        (ssl.SSLEOFError("x"), StoreUnavailable, "TLS failed, it closed the connection"),
    ],
)
def test_a_connection_that_cannot_be_made_says_why(error: OSError, kind: type[StoreError], says: str) -> None:
    try:
        try:
            raise error
        except OSError as caught:
            raise redis.exceptions.ConnectionError("as the driver wraps it") from caught
    except redis.exceptions.ConnectionError as wrapped:
        found = cannot_connect(wrapped, WHERE, waited=2)
    assert type(found) is kind
    assert re.search(says, str(found))
    assert WHERE in str(found)


def drivers_errors() -> list[type[Exception]]:
    found = [one for _, one in inspect.getmembers(redis.exceptions, inspect.isclass)]
    return [one for one in found if issubclass(one, Exception)]


@pytest.mark.parametrize("kind", drivers_errors(), ids=lambda kind: kind.__name__)
def test_every_error_of_the_driver_becomes_one_of_ours(kind: type[Exception]) -> None:
    error = kind.__new__(kind)
    error.args = ("something",)
    assert isinstance(cannot_connect(error, WHERE, waited=1), StoreError)


def test_why_a_connection_was_lost_is_said_in_a_few_words() -> None:
    assert lost_because(None) == "it closed the connection"
    assert lost_because(BrokenPipeError(32, "Broken pipe")) == "the connection was lost: Broken pipe"
