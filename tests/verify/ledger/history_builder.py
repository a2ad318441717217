"""Builds a history fact by fact, with its own clock (ms), and checks it."""

from __future__ import annotations

from typing import Any

from penstock.core.flow import FlowInfo, FlowNode, FlowState, NewFlow, NodeState
from penstock.core.job import Job, NewJob, Ref, State
from penstock.stores.contract import QueueInfo, QueueStats, StoredStep
from penstock.verify.effects import StepEffect
from penstock.verify.ledger import Verdict, facts
from penstock.verify.ledger.check import Snapshot, verdict_on
from penstock.verify.ledger.facts import Fact
from penstock.verify.ledger.history import History, build_history
from penstock.verify.ledger.rules.case import StoredFlow

QUEUE = "q"
#: The wall clock (ms) when the monotonic one of these histories is 0.
EPOCH = 1_700_000_000_000


class HistoryBuilder:
    """Writes facts at given times; process 1 is the ledger's own, 2 and 3 are workers."""

    def __init__(self) -> None:
        self.facts: list[Fact] = [facts.Opened(*self.now(0, 1), parent=0, host="h")]
        self.jobs: dict[Ref, Job] = {}
        self.flows: dict[Ref, StoredFlow] = {}
        self.steps: dict[Ref, list[StoredStep]] = {}
        self.effects: dict[Ref, dict[str, list[StepEffect]]] = {}
        self.borrows_clock = False

    @staticmethod
    def now(at: float, pid: int) -> tuple[int, int, int]:
        return EPOCH + int(at), int(at * 1_000_000), pid

    def write(self, kind: type[Fact], at: float, *values: Any, pid: int = 1, **more: Any) -> None:
        self.facts.append(kind(*self.now(at, pid), *values, **more))

    # ── producers ────────────────────────────────────────────────────────────────────────────────

    def enqueue(
        self, id: str, at: float, *, verdict: str = "new", holder: str = "", took: float = 1, **more: Any
    ) -> None:
        """Offered at `at`, answered `took` ms later; verdict '' for no answer."""
        due = EPOCH + int(at)
        values = {"task": "t", "due": due, "max_attempts": 5, **more}
        self.write(facts.Offered, at, QUEUE, id, **values)
        if verdict:
            self.write(facts.Answered, at + took, QUEUE, id, verdict, holder)

    def enqueue_together(self, *ids: str, at: float, **more: Any) -> None:
        """In one call, in this order."""
        for i, id in enumerate(ids):
            self.enqueue(id, at + i / 1_000, verdict="", **more)
        for id in ids:
            self.write(facts.Answered, at + 1, QUEUE, id, "new")

    def operate(
        self, verb: str, id: str, at: float, answer: str = "available", due: float = 0, took: float = 1
    ) -> None:
        self.write(facts.OperationAsked, at, QUEUE, id, verb, EPOCH + int(due))
        self.write(facts.OperationAnswered, at + took, QUEUE, id, verb, answer)

    # ── workers ──────────────────────────────────────────────────────────────────────────────────

    def lease(self, id: str, at: float, *, pid: int = 2, attempt: int = 1, **more: Any) -> str:
        """A lease whose fetch was sent 1 ms before; returns its token."""
        token = f"{id}/{pid}/{at}"
        values = {"sent": int((at - 1) * 1_000_000), "lease": 15_000, **more}
        self.write(facts.Leased, at, QUEUE, id, token, f"w{pid}", attempt, pid=pid, **values)
        return token

    def start(self, id: str, at: float, *, pid: int = 2, attempt: int = 1, **more: Any) -> str:
        token = self.lease(id, at, pid=pid, attempt=attempt, **more)
        self.write(facts.Started, at + 0.1, QUEUE, id, token, f"w{pid}", attempt, pid=pid)
        return token

    def settle(
        self,
        id: str,
        at: float,
        token: str,
        state: str = "completed",
        answer: str = "applied",
        took: float = 1,
        **more: Any,
    ) -> None:
        """By whoever has this token; answered `took` ms later."""
        pid = int(token.split("/")[-2])
        self.write(facts.Ended, at - 0.1, QUEUE, id, token, "returned", pid=pid)
        self.write(facts.Settling, at, QUEUE, id, token, state, pid=pid, **more)
        if answer:
            self.write(facts.SettleAnswered, at + took, QUEUE, id, token, answer, pid=pid)

    def run(self, id: str, at: float, until: float, *, pid: int = 2, **more: Any) -> None:
        """Leased, started, and completed."""
        self.settle(id, until, self.start(id, at, pid=pid, **more))

    def fault(self, kind: str, at: float, target: int = 0, seconds: float = 0.0, **more: Any) -> None:
        self.write(facts.Fault, at, kind, target, "", seconds, **more)

    # ── the store ────────────────────────────────────────────────────────────────────────────────

    def keep(self, id: str, state: State, **more: Any) -> None:
        """The store has it so."""
        job = Job(NewJob(id, "t", queue=QUEUE), state, **more)
        self.jobs[job.ref] = job

    def chain(self, id: str, *jobs: str, end: NodeState = NodeState.COMPLETED) -> None:
        """A flow of these jobs, one after the other, all of which have ended so; it should have completed."""
        spec = NewFlow(id, QUEUE)
        state = FlowState.COMPLETED if end is NodeState.COMPLETED else FlowState.FAILED
        self.write(facts.FlowExpected, 0, id, "chain", ("completed",))
        nodes = {n: FlowNode(n, end, Ref(QUEUE, job), next=(n + 1,)) for n, job in enumerate(jobs)}
        info = FlowInfo(spec, state, EPOCH, EPOCH, len(jobs), {end: len(jobs)})
        self.flows[spec.ref] = StoredFlow(info, nodes)
        self.write(facts.FlowPut, 0, QUEUE, id, len(jobs))
        self.write(facts.FlowAnswered, 1, QUEUE, id, "running")

    def record(self, id: str, step: str, at: float, token: str, value: str = "1", **more: Any) -> None:
        """A step that was stored, by a call that was sent 1 ms before."""
        sent = int((at - 1) * 1_000_000)
        self.write(facts.StepRecorded, at, QUEUE, id, token, step, "stored", sent, value, pid=2, **more)

    def effect(self, id: str, step: str, at: float, token: str, mark: str = "m1", given: str = "") -> None:
        """The function of a step begins, and has its effect; `given`: for other arguments than its own."""
        pid, mono = int(token.split("/")[-2]), int(at * 1_000_000)
        self.write(facts.StepRan, at, QUEUE, id, token, step, pid=pid)
        found = self.effects.setdefault(Ref(QUEUE, id), {}).setdefault(step, [])
        found.append(StepEffect(token, mono, pid, mark, given or f'[1,"{id}"]'))

    def act(self, id: str, step: str, at: float, token: str, mark: str = "m1", **more: Any) -> None:
        """A step begins, has its effect, returns, and is stored, 5 ms later; the store has it."""
        self.effect(id, step, at, token, mark)
        self.write(facts.StepRan, at + 1, QUEUE, id, token, step, over=True)
        self.record(id, f"!step/{step}", at + 5, token, **more)
        stored = StoredStep(f"!step/{step}", EPOCH + int(at) + 5, b"1")
        self.steps.setdefault(Ref(QUEUE, id), []).append(stored)

    def build(self) -> History:
        history = build_history(sorted(self.facts, key=lambda fact: fact.mono))
        history.effects = self.effects
        return history

    def verdict_on(self, **options: Any) -> Verdict:
        stats: list[QueueStats] = []
        queues: list[QueueInfo] = []
        seen = Snapshot(self.jobs, queues, stats, self.borrows_clock, self.flows, self.steps)
        return verdict_on(self.build(), seen, **options)

    def promises(self, **options: Any) -> list[str]:
        """The promises that were broken, once for each time."""
        return [finding.promise for finding in self.verdict_on(**options).findings]
