"""The shared lease table: one process writes, another reads, even if the first one dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from penstock.core.ids import mint_many, mint_token
from penstock.core.job import Job, Lease, NewJob, State
from penstock.errors import ConfigError
from penstock.worker import shared_lease_table as table_module
from penstock.worker.shared_lease_table import ChildState, LeaseEntry, LeaseTable


def jobs_of(n: int, queue: str = "default", token: str | None = None) -> list[Job]:
    token = token or mint_token()
    return [
        Job(NewJob(id, "task", queue=queue), State.RUNNING, generation=i, token=token)
        for i, id in enumerate(mint_many(n))
    ]


@pytest.fixture
def table() -> LeaseTable:
    return LeaseTable.create(20)


def reader_of(table: LeaseTable) -> LeaseTable:
    """The same memory as another process has it."""
    return LeaseTable.attach(os.dup(table.fileno()))


def test_what_is_put_in_one_map_is_read_in_another(table: LeaseTable) -> None:
    supervisor = reader_of(table)
    jobs = [*jobs_of(3, "mail"), *jobs_of(2, "q" * 128)]
    before = time.monotonic_ns()
    slots = table.put_many(jobs, until_ns=before + 15)
    entries = supervisor.entries()
    assert [e.slot for e in entries] == slots == [0, 1, 2, 3, 4]
    assert [e.lease for e in entries] == [job.lease for job in jobs]
    assert {e.until_ns for e in entries} == {before + 15}
    assert not any(e.started or e.revoked or e.started_ns or e.deadline_ns for e in entries)

    assert table.try_start(slots[1], deadline_ns=before + 99)
    table.renew(slots[1], before + 30)
    entry = supervisor.entries()[1]
    assert entry.started
    assert before <= entry.started_ns <= time.monotonic_ns()
    assert (entry.deadline_ns, entry.until_ns) == (before + 99, before + 30)
    table.set_deadline(slots[1], before + 100)
    assert supervisor.entries()[1].deadline_ns == before + 100

    table.free(slots[1])
    assert [e.id for e in supervisor.entries()] == [jobs[i].id for i in (0, 2, 3, 4)]


def test_a_reused_slot_keeps_nothing_of_its_last_job(table: LeaseTable) -> None:
    supervisor = reader_of(table)
    first, second = jobs_of(2)
    slot = table.put(first, 1)
    assert table.try_start(slot, 77)
    table.free(slot)
    assert table.put(second, 2) == slot
    (entry,) = supervisor.entries()
    assert entry.lease == second.lease
    assert (entry.started, entry.started_ns, entry.deadline_ns, entry.until_ns) == (False, 0, 0, 2)
    assert table.try_start(slot)


def test_a_revoked_job_does_not_start_and_a_started_one_is_not_revoked(table: LeaseTable) -> None:
    supervisor = reader_of(table)
    waits, runs = table.put_many(jobs_of(2), 1)
    assert table.try_start(runs)
    entries = supervisor.entries()
    assert [e.slot for e in supervisor.revoke(entries)] == [waits]
    assert not table.try_start(waits)
    assert [(e.revoked, e.started) for e in supervisor.entries()] == [(True, False), (True, True)]


def test_a_revocation_that_comes_too_late_does_not_hit_the_slots_next_job(table: LeaseTable) -> None:
    supervisor = reader_of(table)
    slot = table.put(jobs_of(1)[0], 1)
    seen = supervisor.entries()
    assert table.try_start(slot)
    table.free(slot)
    assert table.put(jobs_of(1)[0], 1) == slot
    assert supervisor.revoke(seen) == []
    assert table.try_start(slot)


def test_start_and_revocation_at_the_same_time_never_both_succeed(table: LeaseTable) -> None:
    """Two processes would be better still; here two threads meet at the same slots as fast as they can."""
    supervisor = reader_of(table)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    both, neither, rounds = 0, 0, 300
    try:
        for _ in range(rounds):
            slots = table.put_many(jobs_of(10), 1)
            entries = supervisor.entries()
            taken: list[LeaseEntry] = []

            def revoke(entries: list[LeaseEntry] = entries, taken: list[LeaseEntry] = taken) -> None:
                taken += supervisor.revoke(entries)

            revoker = threading.Thread(target=revoke)
            revoker.start()
            begun = [slot for slot in slots if table.try_start(slot)]
            revoker.join(60)
            given_back = {e.slot for e in taken}
            both += len(set(begun) & given_back)
            neither += len(set(slots) - set(begun) - given_back)
            for slot in slots:
                table.free(slot)
    finally:
        sys.setswitchinterval(before)
    assert both == 0
    assert neither <= 10 * rounds  # allowed: then the process gives them back itself


def test_the_jobs_of_a_revoked_fetch_do_not_start(table: LeaseTable) -> None:
    supervisor = reader_of(table)
    assert table.fetch_arrived(), "jobs that come without a fetch"
    assert not supervisor.fetches
    table.fetch_sent("a" * 24)
    assert supervisor.fetches
    assert supervisor.revoke_fetch() == supervisor.revoke_fetch() == "a" * 24
    assert not table.fetch_arrived()
    assert not supervisor.fetches
    table.fetch_sent("b" * 24)
    assert table.fetch_arrived(), "the next fetch"


def test_a_fetch_whose_jobs_are_in_the_table_is_not_revoked(table: LeaseTable) -> None:
    supervisor = reader_of(table)
    assert supervisor.revoke_fetch() is None
    table.fetch_sent("a" * 24)
    assert table.fetch_arrived()
    assert supervisor.revoke_fetch() is None
    table.fetch_sent("b" * 24)
    assert table.fetch_arrived(), "a revocation that comes too late does not hit the next fetch"


def test_arrival_and_revocation_at_the_same_time_never_both_succeed(table: LeaseTable) -> None:
    supervisor = reader_of(table)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    revoked: set[str | None] = set()
    started: set[str] = set()
    over = threading.Event()

    def revoke() -> None:
        while not over.is_set():
            revoked.add(supervisor.revoke_fetch())

    revoker = threading.Thread(target=revoke)
    revoker.start()
    try:
        for n in range(3_000):
            table.fetch_sent(f"{n:024}")
            if table.fetch_arrived():
                started.add(f"{n:024}")
    finally:
        over.set()
        revoker.join(60)
        sys.setswitchinterval(before)
    assert not started & revoked
    assert revoked - {None} <= {f"{n:024}" for n in range(3_000)}, "a token that is being written"


def test_names_that_are_just_being_written_are_not_read(table: LeaseTable) -> None:
    supervisor = reader_of(table)
    slot = table.put(jobs_of(1)[0], 1)
    at = table._names_at + slot * table_module._NAMES
    head = table._u32[at >> 2]
    table._u32[at >> 2] = head + 1  # the next job's number stands in front, the last one's behind
    assert supervisor.entries() == []
    table._u32[at >> 2] = head
    assert len(supervisor.entries()) == 1


def test_a_full_table_refuses_and_what_is_not_in_it_can_still_run() -> None:
    table = LeaseTable.create(2)
    jobs = jobs_of(1) * (table.capacity + 1)
    slots = table.put_many(jobs, 1)
    assert slots[:-1] == list(range(table.capacity))
    assert slots[-1] == -1
    assert table.try_start(-1)
    table.free(-1)
    table.renew(-1, 5)
    table.set_deadline(-1, 5)
    assert len(table.entries()) == table.capacity
    table.free(7)
    assert table.put(jobs[0], 1) == 7


def test_names_too_long_for_a_row_are_left_out_and_other_alphabets_are_not(table: LeaseTable) -> None:
    long = Job(NewJob("i" * 200, "task", queue="q" * 250), State.RUNNING, token="t")
    far = Job(NewJob("заказ-17", "task", queue="почта"), State.RUNNING, token="t" * 32)
    assert table.put_many([long, far], 1) == [-1, 0]
    assert table.entries()[0].lease == far.lease == Lease("почта", "заказ-17", "t" * 32)


def test_the_header_names_the_writer_and_its_state(table: LeaseTable) -> None:
    supervisor = reader_of(table)
    assert supervisor.header().pid == 0
    before = time.monotonic_ns()
    table.announce("worker-1")
    header = supervisor.header()
    assert (header.pid, header.worker, header.state) == (os.getpid(), "worker-1", ChildState.RUNNING)
    assert before <= header.heartbeat_ns <= header.loop_ns <= time.monotonic_ns()
    table.tick()
    table.state(ChildState.DRAINING)
    later = supervisor.header()
    assert later.state is ChildState.DRAINING
    assert later.heartbeat_ns == header.heartbeat_ns
    assert later.loop_ns > header.loop_ns


CHILD = """
import sys
from penstock.core.job import Job, NewJob, State
from penstock.worker.shared_lease_table import LeaseTable
table = LeaseTable.attach(int(sys.argv[1]))
table.announce("child")
table.put_many([Job(NewJob(f"job-{i}", "t"), State.RUNNING, token="tok") for i in range(3)], 5)
table.try_start(1, 9)
print("ready", flush=True)
sys.stdin.read()
"""


def test_the_table_outlives_a_killed_process_and_says_what_had_begun(table: LeaseTable) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(table.fileno())],
        pass_fds=[table.fileno()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert table.header().pid == child.pid
        child.send_signal(signal.SIGKILL)
    assert [(e.id, e.started) for e in table.entries()] == [
        ("job-0", False),
        ("job-1", True),
        ("job-2", False),
    ]
    assert table.entries()[1].deadline_ns == 9


def test_a_file_that_is_no_table_is_refused() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(4096)
        with pytest.raises(ConfigError, match="not a lease table"):
            LeaseTable.attach(os.dup(file.fileno()))


def test_a_closed_table_lets_go_of_its_file(table: LeaseTable) -> None:
    fd = table.fileno()
    table.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_unused_slots_cost_no_memory() -> None:
    table = LeaseTable.create(20)
    table.put_many(jobs_of(20), 1)
    table.entries()
    assert os.fstat(table.fileno()).st_blocks * 512 < 100_000


def test_only_slots_that_hold_a_job_are_read(table: LeaseTable, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = reader_of(table)
    slots = table.put_many(jobs_of(1_000), 1)
    read: list[int] = []
    original = LeaseTable._read
    monkeypatch.setattr(LeaseTable, "_read", lambda self, slot: read.append(slot) or original(self, slot))
    for slot in slots:
        if slot != 700:
            table.free(slot)
    assert [entry.slot for entry in supervisor.entries()] == [700]
    table.free(700)
    assert supervisor.entries() == []
    assert read == [700]
