"""The checker finds violations: each test falsifies a correct ledger in one way."""

from __future__ import annotations

import msgspec
import pytest

from penstock.core.job import NewJob, Ref, State
from penstock.verify.ledger import LedgerBroken
from penstock.verify.ledger.check import snapshot, verdict_on
from penstock.verify.ledger.history import read
from penstock.verify.ledger.rules.counters import scraped
from tests.verify.ledger.honest_ledger import Account, promises, with_state


async def test_an_honest_account_has_no_findings(account: Account) -> None:
    verdict = await account.verdict()
    assert verdict.ok, verdict.report()
    assert verdict.require() is verdict
    assert (verdict.enqueued, verdict.completed, verdict.dead, verdict.cancelled) == (7, 5, 1, 1)
    assert (verdict.lost, verdict.early, verdict.unfinished) == (0, 0, 0)
    assert verdict.runs == 8
    assert verdict.reruns == {"failure": 1, "snooze": 1}
    assert verdict.retried == 1
    assert len(verdict.lateness) == 1
    assert verdict.lateness[0] >= 0


async def test_a_job_that_the_store_has_forgotten_is_lost(account: Account) -> None:
    account.strike("settling", "plain")
    account.strike("settled", "plain")
    verdict = await account.verdict(exclusive=False)
    assert verdict.lost == 1
    assert promises(verdict.findings) == {"lost"}
    assert verdict.findings[0].id == account.ids["plain"]


async def test_a_job_that_never_started_and_is_not_there_is_lost(account: Account) -> None:
    for kind in ("leased", "started", "ended", "settling", "settled"):
        account.strike(kind, "late")
    assert (await account.verdict(exclusive=False)).lost == 1


async def test_an_end_that_was_refused_is_no_end(account: Account) -> None:
    account.change("settled", "plain", answer="stale")
    verdict = await account.verdict(exclusive=False)
    assert verdict.lost == 1
    assert verdict.stale == 1


async def test_an_enqueue_without_an_answer_may_be_stored_or_not(account: Account) -> None:
    for kind in ("answered", "leased", "started", "ended", "settling", "settled"):
        account.strike(kind, "plain")
    verdict = await account.verdict(exclusive=False)
    assert verdict.ok, verdict.report()
    assert (verdict.unknown, verdict.enqueued) == (1, 6)


async def test_a_refused_job_that_is_there_is_found(account: Account) -> None:
    for kind in ("leased", "started", "ended", "settling", "settled"):
        account.strike(kind, "kept")
    account.change("answered", "kept", verdict="full")
    assert promises((await account.verdict(exclusive=False)).findings) == {"refused"}


async def test_a_kept_job_that_is_gone_is_found(account: Account) -> None:
    await account.lose("hopeless")
    verdict = await account.verdict(exclusive=False)
    assert promises(verdict.findings) == {"kept"}
    assert verdict.lost == 0


async def test_a_deletion_that_was_written_down_explains_it(account: Account) -> None:
    await account.app.store.delete([Ref("default", account.ids["hopeless"])])
    verdict = await account.verdict()
    assert verdict.ok, verdict.report()
    assert verdict.deleted == 1


async def test_unfinished_work_is_found_once_the_work_is_over(account: Account) -> None:
    handle = await account.work["plain"].using(delay="1h").aenqueue()
    verdict = await account.verdict()
    assert [(f.promise, f.id) for f in verdict.findings] == [("one end", handle.id)]
    assert verdict.unfinished == 1
    assert (await account.verdict(finished=False)).ok


async def test_two_ends_are_found(account: Account) -> None:
    settling, settled = account.facts("settling", "kept")[0], account.facts("settled", "kept")[0]
    other = {"token": "other", "state": "dead"}
    account.add({**settling, **other}, {**settled, **other})
    assert "one end" in promises((await account.verdict(exclusive=False)).findings)


async def test_a_store_that_undoes_an_end_is_found(account: Account) -> None:
    account.pretend("get", with_state(State.AVAILABLE, account.ids["kept"]))
    verdict = await account.verdict(exclusive=False, finished=False)
    assert promises(verdict.findings) == {"one end"}
    account.pretend("get", with_state(State.DEAD, account.ids["kept"]))
    assert promises((await account.verdict(exclusive=False)).findings) == {"one end"}


# ── time ─────────────────────────────────────────────────────────────────────────────────────────


async def test_an_early_start_is_found(account: Account) -> None:
    due = account.facts("offered", "late")[0]["due"]
    account.change("started", "late", at=due - 1)
    verdict = await account.verdict()
    assert promises(verdict.findings) == {"early"}
    assert verdict.early == 1
    assert "1 ms too early" in str(verdict.findings[0])
    assert (await account.verdict(slack=1)).ok


@pytest.mark.parametrize(("fate", "pause"), [("flaky", 50), ("sleepy", 100)])
async def test_a_second_run_before_its_pause_is_over_is_found(
    account: Account, fate: str, pause: int
) -> None:
    settling = account.facts("settling", fate)[0]
    assert settling["delay"] == pause
    account.change("started", fate, nth=1, at=settling["at"] + pause - 5)
    assert promises((await account.verdict()).findings) == {"early"}


async def test_a_reschedule_that_was_written_down_excuses_an_early_start(account: Account) -> None:
    offered, started = account.facts("offered", "late")[0], account.facts("started", "late")[0]
    account.change("started", "late", at=offered["due"] - 10)
    about = {"queue": "default", "id": offered["id"], "pid": 1, "verb": "reschedule", "at": offered["at"]}
    account.add({**about, "fact": "operation_asked", "mono": started["mono"] - 1, "due": offered["due"] - 20})
    account.add({**about, "fact": "operation_answered", "mono": started["mono"] - 1, "answer": "scheduled"})
    assert (await account.verdict()).ok


# ── second runs ──────────────────────────────────────────────────────────────────────────────────


async def test_a_second_run_without_a_cause_is_found(account: Account) -> None:
    account.strike("settling", "flaky")
    account.strike("settled", "flaky")
    account.strike("leased", "flaky")
    verdict = await account.verdict(exclusive=False)
    assert "cause" in promises(verdict.findings)
    assert verdict.reruns["unexplained"] == 1


async def test_a_run_after_the_end_is_found(account: Account) -> None:
    account.add(account.after_the_end("kept"))
    verdict = await account.verdict(exclusive=False)
    assert promises(verdict.findings) == {"cause"}
    assert "ended as completed" in verdict.findings[0].says


def _crash_of_kept(account: Account) -> tuple[int, dict[str, object]]:
    """The first run of `kept` never ended, and another process ran it again. When it began; the fault."""
    started = account.facts("started", "kept")[0]
    settling, settled = account.facts("settling", "kept")[0], account.facts("settled", "kept")[0]
    for kind in ("settling", "settled", "ended"):
        account.strike(kind, "kept")
    again = account.after_the_end("kept", mono=started["mono"] + 5_000_000)
    end = {"token": again["token"], "pid": again["pid"]}
    account.add(again)
    account.add({**settling, **end, "mono": again["mono"] + 1}, {**settled, **end, "mono": again["mono"] + 2})
    fault = {"fact": "fault", "at": started["at"], "mono": started["mono"] + 1_000_000, "pid": 1}
    return started["pid"], {**fault, "kind": "kill", "cause": "SIGKILL"}


async def test_a_recorded_kill_explains_a_second_run(account: Account) -> None:
    pid, fault = _crash_of_kept(account)
    account.add({**fault, "target": pid})
    verdict = await account.verdict(exclusive=False)
    assert verdict.ok, verdict.report()
    assert verdict.rerun_after_crash == 1
    (crash,) = verdict.crashes
    assert crash.pid == pid
    (held,) = [one for one in crash.held if one.id == account.ids["kept"]]
    assert (held.attempt_before, held.attempt, held.worker) == (1, 2, "w2")
    assert held.seconds == pytest.approx(0.004)
    assert verdict.recovery == crash.recovery == pytest.approx(0.004)


async def test_the_kill_of_another_process_explains_nothing(account: Account) -> None:
    pid, fault = _crash_of_kept(account)
    account.add({**fault, "target": pid + 1})
    assert promises((await account.verdict(exclusive=False)).findings) == {"cause"}


@pytest.mark.parametrize(("before", "found"), [(600_000_000, {"cause"}), (1_000_000, set())])
async def test_only_a_kill_that_was_just_recorded_before_the_run_explains_it(
    account: Account, before: int, found: set[str]
) -> None:
    """The kill is recorded before it is sent."""
    pid, fault = _crash_of_kept(account)
    account.add({**fault, "target": pid, "mono": account.facts("started", "kept")[0]["mono"] - before})
    assert promises((await account.verdict(exclusive=False)).findings) == found


async def test_the_kill_of_a_parent_explains_it(account: Account) -> None:
    pid, fault = _crash_of_kept(account)
    parent = next(line["parent"] for line in account.lines() if line["fact"] == "opened")
    assert parent != pid
    account.add({**fault, "target": parent})
    assert (await account.verdict(exclusive=False)).ok


async def test_trouble_of_the_store_excuses_everybody(account: Account) -> None:
    _, fault = _crash_of_kept(account)
    account.add({**fault, "target": 0, "kind": "store"})
    verdict = await account.verdict(exclusive=False)
    assert verdict.ok, verdict.report()
    assert verdict.reruns["store"] == 1


async def test_a_crash_that_did_not_count_as_an_attempt_is_found(account: Account) -> None:
    pid, fault = _crash_of_kept(account)
    account.add({**fault, "target": pid})
    account.change("started", "kept", nth=1, attempt=1)
    assert promises((await account.verdict(exclusive=False)).findings) == {"attempts"}


async def test_an_attempt_beyond_the_limit_is_found(account: Account) -> None:
    account.change("offered", "flaky", max_attempts=1)
    verdict = await account.verdict()
    assert promises(verdict.findings) == {"attempts"}
    assert "attempt 2 started; its limit is 1" in verdict.findings[0].says


async def test_a_second_start_of_an_at_most_once_job_is_found(account: Account) -> None:
    account.change("offered", "flaky", at_most_once=True)
    assert promises((await account.verdict()).findings) == {"at most once"}


# ── fencing ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_stale_outcome_that_was_applied_is_found(account: Account) -> None:
    leased, settling = account.facts("leased", "kept")[0], account.facts("settling", "kept")[0]
    asked = settling["mono"] - 2
    account.add({**leased, "token": "newer", "worker": "w2", "sent": asked, "mono": asked + 1})
    verdict = await account.verdict(exclusive=False)
    assert promises(verdict.findings) == {"fencing"}
    assert "stale outcome (completed) was applied" in verdict.findings[0].says


async def test_a_refused_outcome_that_took_effect_all_the_same_is_found(account: Account) -> None:
    account.change("settled", "kept", answer="stale")
    verdict = await account.verdict(exclusive=False)
    assert promises(verdict.findings) == {"fencing"}
    assert "a stale outcome took effect" in verdict.findings[0].says


async def test_two_outcomes_under_one_lease_are_found(account: Account) -> None:
    account.add(account.facts("settling", "flaky")[0], account.facts("settled", "flaky")[0])
    assert "fencing" in promises((await account.verdict(exclusive=False)).findings)


async def test_two_processes_under_one_lease_are_found(account: Account) -> None:
    account.add({**account.facts("started", "kept")[0], "pid": 77})
    assert promises((await account.verdict()).findings) == {"fencing"}


async def test_a_task_that_writes_its_own_start_is_no_second_process(account: Account) -> None:
    account.add({**account.facts("started", "kept")[0], "pid": 77, "inside": True})
    assert (await account.verdict()).ok


# ── unique ───────────────────────────────────────────────────────────────────────────────────────


async def test_two_jobs_that_hold_one_unique_key_are_found(account: Account) -> None:
    account.change("offered", "plain", unique="k")
    account.change("offered", "kept", unique="k")
    verdict = await account.verdict()
    assert promises(verdict.findings) == {"unique"}
    assert verdict.findings[0].id == account.ids["kept"]


async def test_a_key_may_be_taken_again_after_the_end(account: Account) -> None:
    last = max(int(line["mono"]) for line in account.lines())
    account.change("offered", "plain", unique="k")
    account.change("offered", "kept", unique="k", mono=last + 1)
    account.change("answered", "kept", mono=last + 2)
    assert "unique" not in promises((await account.verdict()).findings)


# ── counters ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("total", ["enqueued", "processed", "failed"])
@pytest.mark.parametrize("off", [-1, 1])
async def test_totals_that_are_off_by_one_are_found(account: Account, total: str, off: int) -> None:
    def lie(stats: list[object]) -> list[object]:
        return [msgspec.structs.replace(one, **{total: getattr(one, total) + off}) for one in stats]

    account.pretend("stats", lie)
    verdict = await account.verdict()
    assert promises(verdict.findings) == {"counters"}
    assert total in verdict.findings[0].says


async def test_counts_that_are_off_by_one_are_found(account: Account) -> None:
    def lie(infos: list[object]) -> list[object]:
        return [
            msgspec.structs.replace(info, counts={**info.counts, State.COMPLETED: 2})  # type: ignore[attr-defined]
            for info in infos
        ]

    account.pretend("queues", lie)
    verdict = await account.verdict()
    assert promises(verdict.findings) == {"counters"}
    assert "counts 2 completed job(s), but has 3" in verdict.findings[0].says


@pytest.mark.parametrize("name", ["jobs_processed_total", "queue_jobs"])
@pytest.mark.parametrize("shown", ["1234", None])
async def test_metrics_that_differ_from_the_store_are_found(
    account: Account, name: str, shown: str | None
) -> None:
    history = read(account.directory)
    seen = await snapshot(account.raw, history)
    assert seen.metrics is not None
    line = next(line for line in seen.metrics.splitlines() if line.startswith(f"penstock_{name}{{"))
    wrong = "" if shown is None else f"{line.rpartition(' ')[0]} {shown}"
    seen = msgspec.structs.replace(seen, metrics=seen.metrics.replace(line, wrong))
    (finding,) = verdict_on(history, seen).findings
    assert finding.promise == "counters"
    assert f"{shown or 'nothing'}; the store counts" in finding.says


@pytest.mark.parametrize("shown", [3, None])
async def test_a_face_that_shows_something_else_is_found(account: Account, shown: int | None) -> None:
    history = read(account.directory)
    seen = await snapshot(account.raw, history)
    ((face, numbers),) = seen.shown.items()
    lie = {what: n for what, n in numbers.items() if what[1] != "enqueued"}
    lie |= {} if shown is None else {("default", "enqueued"): shown}
    (finding,) = verdict_on(history, msgspec.structs.replace(seen, shown={face: lie})).findings
    assert finding.promise == "counters"
    assert finding.says == f"the inspector shows enqueued {shown or 0}; the store counts 7"


async def test_statistics_of_tasks_with_more_than_their_queue_are_found(account: Account) -> None:
    history = read(account.directory)
    seen = await snapshot(account.raw, history)
    assert seen.tasks
    findings = verdict_on(history, msgspec.structs.replace(seen, tasks=seen.tasks * 2)).findings
    assert promises(findings) == {"counters"}
    assert [one.says.split(";")[0] for one in findings] == [
        "the statistics of its tasks count processed 14",
        "the statistics of its tasks count failed 4",
    ]


async def test_metrics_of_a_queue_with_an_unusual_name_are_understood(account: Account) -> None:
    await account.raw.enqueue([NewJob("stray", "somebody.elses", queue='a"b\\nc')])
    seen = await snapshot(account.raw, read(account.directory))
    assert any('a"b' in info.name for info in seen.queues)
    assert not list(scraped(seen.metrics or "", seen.queues, seen.stats))


async def test_a_job_that_was_never_enqueued_is_found(account: Account) -> None:
    await account.raw.enqueue([NewJob("stray", "somebody.elses")])
    assert promises((await account.verdict()).findings) == {"counters"}
    assert (await account.verdict(exclusive=False)).ok


# ── the report ───────────────────────────────────────────────────────────────────────────────────


async def test_findings_raise_with_a_report_that_names_the_job(account: Account) -> None:
    await account.lose("hopeless")
    verdict = await account.verdict(exclusive=False)
    with pytest.raises(LedgerBroken, match=account.ids["hopeless"]):
        verdict.require()


async def test_a_line_that_cannot_be_read_is_found_but_a_torn_last_one_is_not(account: Account) -> None:
    (path,) = account.directory.glob("*.jsonl")
    whole = path.read_text()
    path.write_text(whole + '{"fact":"started","at":1,"mo')
    assert (await account.verdict()).ok
    path.write_text('{"fact":"sta\n' + whole)
    assert promises((await account.verdict()).findings) == {"ledger"}
