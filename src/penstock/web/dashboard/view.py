"""One request for a page or an act: who asks for what, the reads and writes that it makes, and links; and
what a card, a page and an act are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from penstock.app.app import App
from penstock.core.errors import ConfigError, PenstockError, StoreUnavailable, Unsupported
from penstock.core.ids import check_id, check_queue
from penstock.core.security import Right
from penstock.inspector import Inspector, JobAct, QueueView, right_of
from penstock.inspector.audit import AuditLog
from penstock.stores.contract import Capability, Store
from penstock.web.dashboard.background import BulkSteps
from penstock.web.dashboard.formats import now_ms
from penstock.web.dashboard.forms import Form, local_path
from penstock.web.dashboard.identification import Visitor
from penstock.web.dashboard.json_tree import Redaction
from penstock.web.dashboard.pulse import Pulse
from penstock.web.dashboard.settings import DashboardSettings
from penstock.web.dashboard.shared_reads import FRESH, FoundLists, SharedReads

_log = logging.getLogger("penstock.web")

#: Seconds that a part of a page waits after another one had no answer.
_BRIEF = 0.5

T = TypeVar("T")


class NotFoundError(Exception):
    """There is no such job, queue or page. The text is shown."""


@dataclass(frozen=True)
class Shared:
    """What all requests of a dashboard share. `app`: the user's app, if the dashboard was given one."""

    store: Store
    app: App | None
    inspector: Inspector
    settings: DashboardSettings
    redaction: Redaction
    reads: SharedReads
    pulse: Pulse
    bulk_steps: BulkSteps
    found_lists: FoundLists = field(default_factory=FoundLists)


@dataclass
class View:
    """One request of a known visitor.

    `cookie`: the value of the session cookie. `now`: the store's clock (ms). `away`: the error of a store
    that did not answer. `version`: of the queues when the request began.
    """

    request: Request
    visitor: Visitor
    shared: Shared
    cookie: str
    form: Form = field(default_factory=Form)
    now: int = field(default_factory=now_ms)
    away: StoreUnavailable | None = None
    version: str = field(init=False)

    def __post_init__(self) -> None:
        self.version = self.shared.pulse.version

    # ── the question ─────────────────────────────────────────────────────────────────────────────

    @property
    def inspector(self) -> Inspector:
        """The inspector of the store."""
        return self.shared.inspector

    @property
    def base(self) -> str:
        """The path at which the dashboard is mounted, without a slash at its end."""
        return str(self.request.scope.get("root_path", "")).rstrip("/")

    @property
    def queue(self) -> str:
        """The queue in the path. Raises NotFoundError for what cannot be one."""
        return self.checked(check_queue, "queue")

    @property
    def id(self) -> str:
        """The job in the path. Raises NotFoundError for what cannot be one."""
        return self.checked(check_id, "id")

    @property
    def live(self) -> bool:
        """Whether an open page refreshes itself."""
        return "x-penstock-live" in self.request.headers

    def part(self, name: str) -> str:
        """A part of the path, as `segment` wrote it."""
        return str(self.request.path_params.get(name, "")).removeprefix("!")

    def checked(self, check: Callable[[str], str], name: str) -> str:
        """A part of the path that a function has checked. Raises NotFoundError for what it refuses."""
        try:
            return check(self.part(name))
        except ConfigError as error:
            raise NotFoundError(str(error)) from None

    def free_name(self, name: str) -> str:
        """A part of the path that may be any text, as `free_segment` wrote it."""
        return self.part(name).replace("~2F", "/").replace("~7E", "~")

    def asked(self, name: str, otherwise: str = "") -> str:
        """The last value of a query parameter."""
        values = self.request.query_params.getlist(name)
        return values[-1].strip() if values else otherwise

    def all_asked(self, name: str) -> list[str]:
        """All values of a query parameter that are not empty."""
        return [value.strip() for value in self.request.query_params.getlist(name) if value.strip()]

    # ── links ────────────────────────────────────────────────────────────────────────────────────

    def link(self, path: str, /, **query: Any) -> str:
        """The path of a page with this query; parameters that are None or empty are left out."""
        given = {name: value for name, value in query.items() if value not in (None, "", [], ())}
        text = urlencode(given, doseq=True)
        return f"{self.base}{path}" + (f"?{text}" if text else "")

    def here(self, /, **changes: Any) -> str:
        """The path of this page with a changed query: None removes a parameter."""
        query: dict[str, Any] = {}
        for name, value in self.request.query_params.multi_items():
            query.setdefault(name, []).append(value)
        return self.link(self.path, **{**query, **changes})

    @property
    def path(self) -> str:
        """The path of this page below the dashboard's own."""
        path = str(self.request.scope["path"]).removeprefix(self.base)
        return quote(path, safe="/!:@+=~")

    def queue_link(self, queue: str) -> str:
        """The path of the page of a queue."""
        return self.link(f"/queues/{segment(queue)}")

    def job_link(self, queue: str, id: str) -> str:
        """The path of the page of a job."""
        return self.link(f"/jobs/{segment(queue)}/{segment(id)}")

    def task_link(self, task: str, /, **query: Any) -> str:
        """The path of the page of a task."""
        return self.link(f"/tasks/{free_segment(task)}", **query)

    def worker_link(self, worker: str) -> str:
        """The path of the page of a worker."""
        return self.link(f"/workers/{free_segment(worker)}")

    # ── rights ───────────────────────────────────────────────────────────────────────────────────

    def may(self, act: str | JobAct, queue: str = "*") -> bool:
        """Whether the visitor may do this act on this queue, or on all: `right_of` has the right it needs."""
        return self.visitor.may(right_of(act), queue)

    def may_somewhere(self, act: str | JobAct) -> bool:
        """Whether the visitor may do this act on any queue."""
        return self.visitor.may_somewhere(right_of(act))

    def queues_for(self, act: str | JobAct) -> tuple[str, ...] | None:
        """The queues on which the visitor may do this act, `*` for any characters; None: all queues."""
        return self.visitor.queues_of(right_of(act))

    def sees(self, queue: str = "*") -> bool:
        """Whether the visitor may read this queue, or all."""
        return self.visitor.may(Right.READ, queue)

    def sees_one_of(self, queues: Iterable[str]) -> bool:
        """Whether the visitor may read one of these queues, or all."""
        return self.sees() or any(map(self.sees, queues))

    # ── the store ────────────────────────────────────────────────────────────────────────────────

    def can(self, need: str) -> bool:
        """Whether the store has the capability of this name."""
        return self.shared.store.can(Capability[need])

    def offers(self, path: str) -> bool:
        """Whether the store can do what the page at this path needs, which is a path of its table."""
        return lack(self.shared.store, path) is None

    @property
    def cannot(self) -> str:
        """A sentence that says what the store cannot do; empty if it can do everything."""
        lacks = [one.value for one in Capability if not self.shared.store.can(one)]
        return f"This store cannot {', '.join(lacks)}: what needs that is not offered." if lacks else ""

    # ── reads ────────────────────────────────────────────────────────────────────────────────────

    async def read(
        self, key: Hashable, read: Callable[[], Awaitable[T]], *, cost: int = 1, fresh: float = FRESH
    ) -> T:
        """An answer of the inspector that is shared with other requests for `fresh` seconds.

        The parts of a page do not each wait for a store that does not answer: after the first, briefly.
        """
        try:
            async with asyncio.timeout(_BRIEF if self.away else None):
                return await self.shared.reads.get(key, read, cost=cost, fresh=fresh)
        except StoreUnavailable as error:
            self.away = error
            raise
        except TimeoutError:
            raise self.away or StoreUnavailable("the store does not answer") from None

    async def card(
        self, key: Hashable, read: Callable[[], Awaitable[T]], *, cost: int = 1, fresh: float = FRESH
    ) -> Card[T]:
        """The same for a card, which shows its own errors."""
        return await card(self.read(key, read, cost=cost, fresh=fresh))

    async def queues(self) -> list[QueueView]:
        """The queues that the visitor may read."""
        read = self.inspector.queues
        return [q for q in await self.read("queues", read, cost=2) if self.sees(q.name)]

    async def find_queue(self, name: str) -> QueueView | None:
        """A queue that the visitor may read; None if there is none. A new one is not in the shared answer."""
        found = next((queue for queue in await self.queues() if queue.name == name), None)
        if found is None and self.shared.reads.allow_reread("queues"):
            found = next((queue for queue in await self.queues() if queue.name == name), None)
        return found

    # ── changes ──────────────────────────────────────────────────────────────────────────────────

    async def audit(self, act: str, to: str | Sequence[str], facts: Mapping[str, str] | None = None) -> None:
        """Write an act of the visitor into the audit log."""
        client = self.request.client
        await AuditLog(self.shared.store).write(
            self.visitor.name,
            act,
            to,
            address=client.host if client else "",
            status=303,
            facts=self.shared.redaction.apply(dict(facts or {})),
        )

    def done(
        self, says: str, otherwise: str, *, failed: bool = False, to: str = "", undo: str = ""
    ) -> Response:
        """Return to the page of the form, which then says what was done. `otherwise`: a path of a page.

        `to`: the path of another page to show. `undo`: the path of the act that takes this one back; a form
        without fields is sent there.
        """
        self.shared.reads.clear()
        back = local_path(self.form.get("back"), self.base, self.link(otherwise))
        answer = RedirectResponse(self.link(to) if to else back, 303)
        self.request.state.flash = ("failed" if failed else "done", undo, says)
        return answer


def segment(name: str) -> str:
    """A name as one part of a path. Browsers remove "." and "..", so a name of dots gets a "!" before it."""
    text = quote(name, safe=":@+=~")
    return f"!{text}" if not name.strip(".") or name.startswith("!") else text


def free_segment(name: str) -> str:
    """Any text as one part of a path. Servers decode "%2F" before they split a path, so a "/" is "~2F"."""
    return segment(name.replace("~", "~7E").replace("/", "~2F"))


# ── what the store must be able to do ────────────────────────────────────────────────────────────

#: By path of a page or an act; what is not listed needs as much as the path above it, and the top needs the
#: core alone. Those of a store that cannot are not offered.
_NEEDS = {
    "/jobs": (Capability.SEARCH,),
    "/jobs/change": (Capability.CHANGE,),
    "/jobs/undo": (Capability.CHANGE,),
    "/jobs/{queue}/{id}": (Capability.FOLLOW,),
    "/jobs/{queue}/{id}/edit": (Capability.FOLLOW, Capability.CHANGE),
    "/jobs/{queue}/{id}/steps": (Capability.FOLLOW, Capability.STEPS),
    "/queues/{queue}/limits": (Capability.LIMITS,),
    "/queues/{queue}/reset": (Capability.LIMITS,),
    "/queues/{queue}/throttle": (Capability.LIMITS,),
    "/queues/{queue}/batches": (Capability.CHANGE,),
    "/errors": (Capability.MEASURE,),
    "/tasks": (Capability.MEASURE,),
    "/workers": (Capability.WORKERS,),
    "/flows": (Capability.FLOW,),
    "/periodic": (Capability.SCHEDULE,),
    "/batches": (Capability.SEARCH,),
    "/bulk": (Capability.DOCUMENTS,),
    "/audit": (Capability.DOCUMENTS,),
    "/search": (Capability.SEARCH,),
}


def lack(store: Store, path: str) -> Capability | None:
    """What the store would need for the page or act at this path; None: it has that."""
    while path and path not in _NEEDS:
        path = path.rpartition("/")[0]
    return next((need for need in _NEEDS.get(path, ()) if not store.can(need)), None)


# ── cards of a page ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Card(Generic[T]):
    """What a card shows, or why it cannot be shown. `absent`: the store does not keep that."""

    value: T | None = None
    error: str = ""
    absent: bool = False


async def card(read: Awaitable[T]) -> Card[T]:
    """Read what a card shows. An error of the store becomes the text of the card."""
    try:
        return Card(await read)
    except Unsupported:
        return Card(absent=True)
    except PenstockError as error:
        return Card(error=str(error) or type(error).__name__)
    except Exception as error:  # noqa: BLE001  # boundary: a fault in one card must not hide the others
        _log.exception("a card of the dashboard failed")
        return Card(error=f"This part of the page failed ({type(error).__name__}); the log has the details.")


# ── pages and acts ───────────────────────────────────────────────────────────────────────────────

#: When an open page refreshes itself: never, if the size of a queue has changed, or at each interval.
Refresh = Literal["never", "changed", "always"]


@dataclass(frozen=True, kw_only=True)
class DashboardPage:
    """A page of the dashboard: one entry in the table of `pages/__init__.py`.

    - `name`: the name of its template, `templates/pages/NAME.html`.
    - `path`: below the dashboard's own path. A part `{queue}` is the queue on which the right is needed.
    - `act`: whose right is needed (`right_of`).
    - `show`: returns the values for the template, or an answer of its own, such as a redirect.
    - `navigation`: its name in the navigation; "" if it has no place there. `key`: the letter of the keyboard
      shortcut `g` and then this letter.
    """

    name: str
    path: str
    title: str
    show: Callable[[View], Awaitable[Mapping[str, Any] | Response]]
    act: str = "overview"
    navigation: str = ""
    key: str = ""
    refresh: Refresh = "changed"

    @property
    def right(self) -> Right:
        """The right that a visitor of the page needs."""
        return right_of(self.act)


@dataclass(frozen=True, kw_only=True)
class DashboardAct:
    """A change, an entry in the same table: a form is sent to `path`. `do` does it, and returns an answer,
    mostly `view.done(...)`.

    `act`: whose right is needed (`right_of`); if `path` stands for several acts, they need the same right.
    Without `{queue}` in its path, the right is needed on all queues, or with `somewhere` on any queue: then
    `do` checks it on the queues that it changes. With `shows`, `do` may also return the values of the
    template of this page, which has the same path: what is shown is the answer itself.
    """

    path: str
    do: Callable[[View], Awaitable[Mapping[str, Any] | Response]]
    act: str | JobAct
    somewhere: bool = False
    shows: DashboardPage | None = None

    @property
    def right(self) -> Right:
        """The right that the act needs."""
        return right_of(self.act)
