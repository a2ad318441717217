"""Who looks at the dashboard, and what this person may do."""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.web.access_tokens import Right, TokenScope

__all__ = ["EVERYBODY", "Visitor"]


@dataclass(frozen=True)
class Visitor:
    """A person with rights on queues. `name` is written into the audit log."""

    name: str
    scopes: tuple[TokenScope, ...]

    @classmethod
    def of(cls, name: str, *scopes: str) -> Visitor:
        """A visitor with scopes as those of a token: `Visitor.of("ann", "operate:mail.*", "read")`."""
        return cls(f"user:{name}", tuple(TokenScope.of(text) for text in scopes))

    def may(self, right: Right, queue: str = "*") -> bool:
        """Whether the visitor has this right on this queue; `*` stands for all queues."""
        return any(scope.gives(right) and scope.covers(queue) for scope in self.scopes)

    def may_somewhere(self, right: Right) -> bool:
        """Whether the visitor has this right on any queue."""
        return any(scope.gives(right) for scope in self.scopes)

    def reading_only(self) -> Visitor:
        """The same visitor, who may read what they could read, and change nothing."""
        only = tuple(TokenScope((Right.READ,), s.queues) for s in self.scopes if s.gives(Right.READ))
        return replace(self, scopes=only)


#: The visitor of a dashboard that asks for no login.
EVERYBODY = Visitor("anonymous", (TokenScope((Right.ADMIN,)),))
