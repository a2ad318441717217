"""A run uses the user's settings, except for those that it depends on."""

from __future__ import annotations

import pytest

from penstock.config import load
from penstock.verify.run_folder import QUEUES, settings_of_run


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("somewhere"))


def test_leases_are_short_unless_the_user_has_said_something_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(env=settings_of_run()).config.lease == 3_000
    monkeypatch.setenv("PENSTOCK_HEARTBEAT", "6s")
    assert "PENSTOCK_LEASE" not in settings_of_run()
    monkeypatch.setenv("PENSTOCK_LEASE", "20s")
    assert "PENSTOCK_LEASE" not in settings_of_run()


def test_workers_serve_the_queues_of_the_run_with_any_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_QUEUES", "mail")
    monkeypatch.setenv("PENSTOCK_LOG_LEVEL", "error")
    monkeypatch.setenv("PENSTOCK_KEEP_FINISHED_COUNT", "5")
    config = load(env=settings_of_run()).config
    assert config.queues.split(",") == list(QUEUES)
    assert (config.log_level, config.log_format) == ("info", "text")
    assert config.keep_finished_count > 1_000_000
