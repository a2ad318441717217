"""The story of one flow: the calls that stored and changed it, and how it may end."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.core.job import Ref
from penstock.verify.ledger.facts import FlowAnswered, FlowChanged, FlowExpected, FlowPut

__all__ = ["FlowStory"]


@dataclass(slots=True)
class FlowStory:
    """All facts about one flow, in order."""

    ref: Ref
    expected: FlowExpected | None = None
    #: The nodes of all calls that stored a part of it.
    nodes: int = 0
    puts: list[FlowPut] = field(default_factory=list)
    #: For each answer: when its call was sent and answered (mono), and what it says.
    answers: list[tuple[int, int, str]] = field(default_factory=list)
    changes: list[FlowChanged] = field(default_factory=list)

    def add(self, fact: FlowPut | FlowAnswered | FlowChanged) -> None:
        match fact:
            case FlowPut():
                self.puts.append(fact)
                self.nodes += fact.nodes
            case FlowAnswered():
                sent = next((put.mono for put in reversed(self.puts) if put.pid == fact.pid), fact.mono)
                self.answers.append((sent, fact.mono, fact.answer))
            case FlowChanged():
                self.changes.append(fact)

    @property
    def acknowledged_call(self) -> tuple[int, int] | None:
        """When the call was sent and answered (mono) that started the flow; None: no answer says so."""
        if not self.puts or not self.puts[-1].start or len(self.answers) < len(self.puts):
            return None
        sent, answered, said = self.answers[-1]
        return None if said in ("refused", "unknown", "building") else (sent, answered)

    @property
    def refused(self) -> bool:
        return any(said == "refused" for _, _, said in self.answers)
