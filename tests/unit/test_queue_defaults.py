"""`App(queues={...})`: limits in code that workers store, and that no operator's value is lost to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import App, QueueDefaults, QueueFull, Worker
from penstock.core.errors import ConfigError
from penstock.core.limits import NO_LIMITS, OnFull, QueueLimits, Rate
from penstock.maintenance.housekeeping import QueueDefaultsWriter
from penstock.stores.contract import QueueInfo, Store
from penstock.testing import inline
from tests import servers

Release = Callable[..., App]


@pytest.fixture(params=["memory", "sqlite", "redis"])
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Release]:
    """Makes apps on one store, each as another release of the same code would be."""
    urls = {"memory": f"memory://{tmp_path.name}", "sqlite": f"sqlite:///{tmp_path}/jobs.db"}
    if request.param == "redis":
        url = f"{servers.SHARED_REDIS.get().url}?prefix={tmp_path.name}"
    else:
        url = urls[request.param]
    apps: list[App] = []

    def make(**options: Any) -> App:
        app = App(url, **options)

        @app.task(name="send", queue="mail")
        def send(to: str) -> str:
            return to

        apps.append(app)
        return app

    yield make
    for app in apps:
        app.close()


def deploy(app: App) -> QueueInfo:
    """Start a worker of this release, as a deploy does, and return the queue."""
    asyncio.run(Worker(app, burst=True).run())
    return mail_of(app.store)


def mail_of(store: Store) -> QueueInfo:
    return next(info for info in store.sync.queues() if info.name == "mail")


def test_a_worker_stores_the_limits_before_it_fetches(release: Release) -> None:
    info = deploy(release(queues={"mail": QueueDefaults(rate="5/s", burst=2, max_size=9, on_full="wait")}))
    assert info.limits == QueueLimits(max_size=9, on_full=OnFull.WAIT, rate=Rate.of("5/s", burst=2))
    assert {info.layers.source(name) for name in ("rate", "max_size", "on_full")} == {"code"}


def test_limits_follow_the_code_at_the_next_deploy(release: Release) -> None:
    deploy(release(queues={"mail": QueueDefaults(rate="5/s", max_running=3)}))
    assert deploy(release(queues={"mail": QueueDefaults(rate="7/s")})).limits == QueueLimits(
        rate=Rate.of("7/s")
    )
    assert deploy(release(queues={"mail": QueueDefaults()})).limits == NO_LIMITS


def test_an_operators_limit_stays_through_deploys_until_it_is_reset(release: Release) -> None:
    deploy(release(queues={"mail": QueueDefaults(rate="5/s", max_running=3)}))
    operator = release()
    operator.queue("mail").settings(rate="1/s")
    app = release(queues={"mail": QueueDefaults(rate="7/s", max_running=4)})
    info = deploy(app)
    assert info.limits == QueueLimits(rate=Rate.of("1/s"), max_running=4)
    assert operator.queue("mail").reset("rate").limits.rate == Rate.of("7/s")
    assert asyncio.run(app.queue("mail").areset()).limits == QueueLimits(rate=Rate.of("7/s"), max_running=4)


def test_an_app_without_limits_in_code_leaves_those_of_others(release: Release) -> None:
    deploy(release(queues={"mail": QueueDefaults(rate="5/s")}))
    assert deploy(release()).limits == QueueLimits(rate=Rate.of("5/s"))


def test_an_app_that_limits_other_queues_leaves_those_of_others(release: Release) -> None:
    deploy(release(queues={"mail": QueueDefaults(rate="5/s")}))
    assert deploy(release(queues={"images": QueueDefaults(rate="1/s")})).limits.rate == Rate.of("5/s")


async def test_of_two_releases_the_one_that_stays_has_its_limits_in_effect(
    release: Release, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = (release(queues={"mail": QueueDefaults(rate=rate)}) for rate in ("5/s", "7/s"))
    writers = [QueueDefaultsWriter(app.store, app.queue_defaults) for app in (old, new)]
    for writer in (*writers, *writers):
        assert await writer.tick() == 60
    assert mail_of(new.store).limits.rate == Rate.of("7/s")
    await writers[0].tick()  # the old release still runs
    assert mail_of(new.store).limits.rate == Rate.of("5/s")
    await writers[1].tick()  # and now it has ended
    assert mail_of(new.store).limits.rate == Rate.of("7/s")
    warned = [record.args for record in caplog.records if "another release or app" in record.message]
    assert warned == [("mail",), ("mail",)], "each of the two warns once"


async def test_what_is_stored_already_is_not_written_again(release: Release) -> None:
    app = release(queues={"mail": QueueDefaults(rate="5/s")})
    writer = QueueDefaultsWriter(app.store, app.queue_defaults)
    await writer.tick()
    written = []
    app.store.settings = lambda *args, **options: written.append(args)  # type: ignore[method-assign, assignment]
    await writer.tick()
    assert written == []
    assert [info.name for info in app.store.sync.queues()] == ["mail"]  # a queue without limits is not made


def test_an_inline_test_has_the_limits(release: Release) -> None:
    app = release(queues={"mail": QueueDefaults(max_size=1)})
    with inline(app):
        app.tasks["send"].enqueue("ann")
        with pytest.raises(QueueFull):
            app.tasks["send"].enqueue("bob")


@pytest.mark.parametrize(
    ("queues", "says"),
    [
        ([], r"App\(\): queues=\[\] is not a mapping"),
        ({"mail": {"rate": "5/s"}}, r"App\(\): queues\['mail'\] is not a QueueDefaults\(...\)"),
        ({"a b": QueueDefaults()}, "queue='a b' cannot be a queue's name"),
    ],
)
def test_wrong_limits_are_refused_when_the_app_is_made(queues: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        App("memory://", queues=queues)


@pytest.mark.parametrize(
    "wrong", [{"rate": "fast"}, {"burst": 3}, {"max_size": 0}, {"on_full": "explode"}, {"keep_dead": -1}]
)
def test_a_wrong_limit_is_refused_where_it_is_written(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        QueueDefaults(**wrong)


def test_only_limits_can_be_reset() -> None:
    with pytest.raises(ConfigError, match=r"a queue has no limit 'rates' \(did you mean 'rate'\?\)"):
        App("memory://").queue("mail").reset("rates")
