"""Seals and opens what is in the values that go through the doors of an encrypted store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, cast

import msgspec
from msgspec.structs import replace

from penstock.core.job import AttemptError, Job, NewJob, Progress, Ref, State
from penstock.core.lifecycle import (
    ASK_CANCELLED,
    CANNOT_BE_READ,
    EXPIRED,
    OPERATOR_CANCELLED,
    UNKNOWN_TASK,
    Transition,
)
from penstock.core.schedule import Entry, NewEntry
from penstock.encryption import CannotOpen, Closed, Sealer, about
from penstock.stores.contract import Fetched, HeartbeatRequest, Offer, Settlement

__all__ = ["Clerk"]

J = TypeVar("J", bound="Job | None")

#: Reasons that the lifecycle gives in words of its own, which operators without the key may read.
_OWN_WORDS = frozenset({ASK_CANCELLED, EXPIRED, OPERATOR_CANCELLED, "cancelled", "cancelled while running"})


def _tells_of_no_contents(to: Transition) -> bool:
    """Whether it says in clear why a job is parked, to those who have no key to it."""
    return to.state is State.PARKED and (to.reason or "").startswith((UNKNOWN_TASK, CANNOT_BE_READ))


class Clerk:
    """Seals and opens what is in the values of the seam."""

    def __init__(self, sealer: Sealer, namespace: str) -> None:
        self._sealer = sealer
        self._namespace = namespace

    # ── in ───────────────────────────────────────────────────────────────────────────────────────

    def sealed(self, jobs: Iterable[NewJob]) -> list[NewJob]:
        return [self._sealed(job) for job in jobs]

    def _sealed(self, job: NewJob) -> NewJob:
        payload = self._sealer.seal(job.payload, self._place_of(job))
        if job.unique is None:
            return replace(job, payload=payload)
        return replace(
            job, payload=payload, unique=replace(job.unique, key=self._sealer.mark(job.unique.key))
        )

    def sealed_entry(self, entry: NewEntry) -> NewEntry:
        """Equal entries look equal: an entry that is put again is no new one."""
        job = entry.job
        unique = job.unique and replace(job.unique, key=self._sealer.mark(job.unique.key))
        payload = self._sealer.seal(job.payload, self._place_of_entry(entry), same=True)
        return replace(entry, job=replace(job, payload=payload, unique=unique))

    def settlement(self, one: Settlement) -> Settlement:
        to, result, then = self._transition(one.lease, one.transition), one.result, one.then
        if result is not None:
            result = self._sealer.seal(result, self._about("result", one.lease))
        if then:
            then = tuple(self.sealed(then))
        if to is one.transition and result is None and not then:
            return one
        return replace(one, transition=to, result=result, then=then)

    def _transition(self, job: Any, to: Transition) -> Transition:
        changes: dict[str, Any] = {}
        if to.error is not None:
            changes["error"] = self._sealed_error(job, to.error)
        if to.reason is not None and self.seals_reason(to.reason) and not _tells_of_no_contents(to):
            changes["reason"] = self.sealed_reason(job, to.reason)
        return replace(to, **changes) if changes else to

    def seals_reason(self, reason: str) -> bool:
        """Whether it is in somebody's own words: they may quote what the job carries."""
        return reason not in _OWN_WORDS

    def sealed_reason(self, job: Any, reason: str) -> str:
        return self._sealer.seal_text(reason, self._about("reason", job))

    def _sealed_error(self, job: Any, error: AttemptError) -> AttemptError:
        place = self._about("error", job)
        message, traceback = (
            self._sealer.seal_text(text, place) for text in (error.message, error.traceback)
        )
        return replace(error, message=message, traceback=traceback)

    def beat(self, request: HeartbeatRequest) -> HeartbeatRequest:
        if request.progress is None and request.checkpoint is None:
            return request
        progress, checkpoint = request.progress, request.checkpoint
        if progress is not None:
            note = self._sealer.seal_text(progress.note, self._about("note", request.lease))
            progress = replace(progress, note=note)
        if checkpoint is not None:
            checkpoint = self._sealer.seal(checkpoint, self._about("checkpoint", request.lease))
        return replace(request, progress=progress, checkpoint=checkpoint)

    def offer(self, offer: Offer | None) -> Offer | None:
        """What comes by an offer is opened as what a fetch brings."""
        if offer is None or offer.take is None:
            return offer
        take = offer.take

        def taken(fetched: Fetched) -> Offer | None:
            return self.offer(take(self.fetched(fetched)))

        return replace(offer, take=taken)

    # ── out ──────────────────────────────────────────────────────────────────────────────────────

    def fetched(self, fetched: Fetched) -> Fetched:
        return replace(fetched, jobs=self.opened(fetched.jobs)) if fetched.jobs else fetched

    def opened(self, jobs: Iterable[J]) -> list[J]:
        return [cast(J, None if job is None else self._opened_or_closed(job)) for job in jobs]

    def _opened_or_closed(self, job: Job) -> Job:
        try:
            return self._opened(job)
        except Exception as error:  # noqa: BLE001  # boundary: what does not open concerns its own job alone
            why = f"it cannot be opened: {error}"
            return replace(job, spec=replace(job.spec, payload=Closed.of(b"", why)), result=None)

    def _opened(self, job: Job) -> Job:
        open = self._open_batch if job.members else self._open_payload
        changes: dict[str, Any] = {"spec": replace(job.spec, payload=open(job))}
        if job.result is not None:
            changes["result"] = self._open(job.result, self._about("result", job))
        if job.checkpoint is not None:
            changes["checkpoint"] = self._open(job.checkpoint, self._about("checkpoint", job))
        if job.errors:
            changes["errors"] = tuple(self._open_error(job, error) for error in job.errors)
        if job.progress is not None and job.progress.note:
            changes["progress"] = self._open_progress(job, job.progress)
        if job.reason is not None:  # a member's is its batch's
            places = [self._about("reason", job)]
            if job.batch is not None:
                places.append(self._about("reason", Ref(job.queue, job.batch)))
            changes["reason"] = self._sealer.open_text(job.reason, *places)
        return replace(job, **changes)

    def opened_entry(self, entry: Entry) -> Entry:
        spec = entry.spec
        payload = self._open(spec.job.payload, self._place_of_entry(spec))
        return replace(entry, spec=replace(spec, job=replace(spec.job, payload=payload)))

    def _open_payload(self, job: Job) -> bytes:
        return self._open(job.spec.payload, *self._places_of(job.spec, job.id))

    def _open_batch(self, job: Job) -> bytes:
        """The list of what a batch's members carry: all of them open, or it stays closed."""
        payload = job.spec.payload
        try:
            (elements,) = _elements(payload)
            if len(elements) != len(job.members):
                raise CannotOpen("it has not as many elements as members")
            opened = [
                self._sealer.open(bytes(element), *self._places_of_element(job.spec, id))
                for element, id in zip(elements, job.members, strict=True)
            ]
        except CannotOpen as error:
            return Closed.of(payload, f"one of its members: {error}")
        except (msgspec.DecodeError, ValueError):
            return Closed.of(payload, "it is not the list of what its members carry")
        return b"[[" + b",".join(opened) + b"]]"

    def _open_error(self, job: Job, error: AttemptError) -> AttemptError:
        place = self._about("error", job)
        message, traceback = (
            self._sealer.open_text(text, place) for text in (error.message, error.traceback)
        )
        return replace(error, message=message, traceback=traceback)

    def _open_progress(self, job: Job, progress: Progress) -> Progress:
        return replace(progress, note=self._sealer.open_text(progress.note, self._about("note", job)))

    def _open(self, data: bytes, *places: bytes) -> bytes:
        try:
            return self._sealer.open(data, *places)
        except CannotOpen as error:
            return Closed.of(data, str(error))

    # ── places ───────────────────────────────────────────────────────────────────────────────────

    def _place_of(self, job: NewJob) -> bytes:
        """A call that may put its arguments into a job that is there already cannot know that job's id."""
        unique = job.unique
        if unique is None or not unique.replaces_arguments:
            return self._about(_kind_of(job), job, job.task)
        return self._shared_place(job, "" if job.group is not None else self._sealer.mark(unique.key))

    def _places_of(self, spec: NewJob, id: str) -> list[bytes]:
        """Where what this job carries may have been sealed for."""
        places = [self._about(_kind_of(spec), Ref(spec.queue, id), spec.task)]
        if spec.unique is not None:  # a call that replaced its arguments may be of a group or not
            places.append(self._shared_place(spec, spec.unique.key))
        if spec.group is not None or spec.unique is not None:
            places.append(self._shared_place(spec, ""))
        return places

    def _places_of_element(self, spec: NewJob, id: str) -> list[bytes]:
        """The same of a batch's member: what was not collected is none, whatever the batch says."""
        return [self._about("element", Ref(spec.queue, id), spec.task), self._shared_place(spec, "")]

    def _shared_place(self, job: NewJob, unique: str) -> bytes:
        return about("replacing", self._namespace, job.queue, job.task, unique)

    def _place_of_entry(self, entry: NewEntry) -> bytes:
        return about("entry", self._namespace, entry.job.queue, entry.job.task, entry.name)

    def _about(self, kind: str, job: Any, task: str = "") -> bytes:
        return about(kind, self._namespace, job.queue, task, job.id)


def _kind_of(job: NewJob) -> str:
    """What is collected is no call by itself, and no call is an element of a batch."""
    return "arguments" if job.group is None else "element"


_elements = msgspec.json.Decoder(tuple[list[msgspec.Raw]]).decode
