"""Task options with keys: valid values, the key of a call, and clear errors."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.app.app import App
from penstock.core.job import NewJob
from penstock.core.limits import Rate
from penstock.core.relations import Partition, Tenant
from penstock.errors import ArgumentError, ConfigError


@pytest.fixture
def app() -> App:
    return App("memory://")


def made(app: App, *args: Any, **options: Any) -> NewJob:
    @app.task(name="command", **options)
    def command(device: str, tenant: int = 7, urgent: bool = False) -> None: ...

    return command.job(*args).new()


@pytest.mark.parametrize(
    ("options", "partition"),
    [
        ({"concurrency_key": "device"}, Partition("d1")),
        ({"concurrency_key": "tenant"}, Partition("7")),
        ({"concurrency_key": ["device", "tenant"], "max_running_per_key": 3}, Partition('["d1",7]', 3)),
        ({"concurrency_key": lambda device: device.upper(), "ordered": True}, Partition("D1", 1, True)),
        ({"concurrency_key": lambda **all: f"{all['tenant']}!"}, Partition("7!")),
        ({"concurrency_key": lambda device, tenant: None}, None),
        (
            {"concurrency_key": "device", "rate_per_key": "10/min"},
            Partition("d1", 1, False, Rate(10, 60_000)),
        ),
        (
            {"concurrency_key": "device", "rate_per_key": "1/s", "burst_per_key": 5},
            Partition("d1", 1, False, Rate(1, 1_000, 5)),
        ),
    ],
)
def test_a_call_gets_its_partition(app: App, options: dict[str, Any], partition: Partition | None) -> None:
    assert made(app, "d1", **options).partition == partition


@pytest.mark.parametrize(
    ("options", "tenant"),
    [
        ({"fair_by": "tenant"}, Tenant("7")),
        ({"fair_by": "device", "fair_weights": {"d1": 3}}, Tenant("d1", 3)),
        ({"fair_by": "tenant", "fair_weights": {"d1": 3}}, Tenant("7")),
        ({"fair_by": "device", "fair_weights": len}, Tenant("d1", 2)),
        ({"fair_by": lambda tenant: None}, None),
    ],
)
def test_a_call_gets_its_turn(app: App, options: dict[str, Any], tenant: Tenant | None) -> None:
    assert made(app, "d1", **options).tenant == tenant


def test_long_and_unusual_keys_are_shortened_and_stay_distinct(app: App) -> None:
    keys = set()
    for device in ("x" * 201, "x" * 202, "\ud800"):
        partition = (
            made(app, device, concurrency_key=lambda device: device).partition if device[0] == "x" else None
        )
        keys.add(None if partition is None else partition.key)
        app = App("memory://")
    assert len(keys) == 3
    assert all(key is None or len(key.encode()) <= 200 for key in keys)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"concurrency_key": "devise"}, "no argument 'devise'.*did you mean 'device'"),
        ({"concurrency_key": []}, "neither the name"),
        ({"concurrency_key": 5}, "neither the name"),
        ({"concurrency_key": lambda who: who}, "not 'who'"),
        ({"concurrency_key": lambda *all: "k"}, "not 'all'"),
        ({"max_running_per_key": 2}, "concurrency_key="),
        ({"ordered": True}, "concurrency_key="),
        ({"rate_per_key": "1/s"}, "concurrency_key="),
        ({"concurrency_key": "device", "max_running_per_key": 0}, "1 or more"),
        ({"concurrency_key": "device", "max_running_per_key": True}, "1 or more"),
        ({"concurrency_key": "device", "ordered": 1}, "neither True nor False"),
        ({"concurrency_key": "device", "ordered": True, "max_running_per_key": 2}, "one job at a time"),
        ({"concurrency_key": "device", "rate_per_key": "fast"}, "rate_per_key='fast'"),
        ({"concurrency_key": "device", "rate_per_key": "-1/s"}, "never let a job start"),
        ({"concurrency_key": "device", "burst_per_key": 2}, "rate_per_key="),
        ({"fair_weights": {"a": 1}}, "fair_by="),
        ({"fair_by": "tennant"}, "did you mean 'tenant'"),
        ({"fair_by": "tenant", "fair_weights": {"a": 0}}, "0 for 'a'.*from 1 to 100"),
        ({"fair_by": "tenant", "fair_weights": {"a": 1.5}}, "1.5 for 'a'"),
        ({"fair_by": "tenant", "fair_weights": 3}, "neither a mapping"),
    ],
)
def test_what_makes_no_sense_is_refused_where_the_task_is_made(
    app: App, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        made(app, "d1", **options)


def boom(device: str) -> str:
    raise KeyError(device)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"concurrency_key": boom}, "concurrency_key= failed with KeyError: 'd1'; nothing was stored"),
        ({"fair_by": boom}, "fair_by= failed with KeyError"),
        ({"concurrency_key": lambda device: 1.5}, "gave 1.5"),
        ({"concurrency_key": lambda device: True}, "gave True"),
        ({"concurrency_key": lambda device: ""}, "gave ''"),
        ({"fair_by": "device", "fair_weights": lambda key: 0}, "gave 0 for 'd1'"),
        ({"fair_by": "device", "fair_weights": lambda key: 1 // 0}, "ZeroDivisionError"),
    ],
)
def test_a_key_that_fails_fails_the_call_and_nothing_is_stored(
    app: App, options: dict[str, Any], says: str
) -> None:
    @app.task(**options)
    def command(device: str) -> None: ...

    with pytest.raises(ArgumentError, match=says):
        command.enqueue("d1")
    assert not [queue for queue in app.store.sync.queues() if queue.counts]
