"""The field cipher: encrypts and decrypts fields of the values that pass through an encrypted store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, cast

import msgspec
from msgspec.structs import replace

from penstock.core.job import AttemptError, Job, NewJob, Progress, Ref, State
from penstock.core.lifecycle import (
    ASK_CANCELLED,
    CANNOT_BE_READ,
    DISCARDED,
    EXPIRED,
    OPERATOR_CANCELLED,
    UNKNOWN_TASK,
    Transition,
)
from penstock.core.schedule import Entry, NewEntry
from penstock.encryption import CannotDecrypt, Cipher, Unreadable, additional_data
from penstock.stores.contract import (
    ErrorCount,
    ErrorGroup,
    Fetched,
    HeartbeatRequest,
    JobMove,
    Settlement,
    WorkerOffer,
)

__all__ = ["FieldCipher"]

J = TypeVar("J", bound="Job | None")

#: Reasons worded by the lifecycle itself; operators without the key may read them.
_OWN_WORDS = frozenset(
    {ASK_CANCELLED, DISCARDED, EXPIRED, OPERATOR_CANCELLED, "cancelled", "cancelled while running"}
)


def _explains_parking(to: Transition) -> bool:
    """Whether the reason says why the job is parked; operators without the key may read it."""
    return to.state is State.PARKED and (to.reason or "").startswith((UNKNOWN_TASK, CANNOT_BE_READ))


class FieldCipher:
    """Encrypts and decrypts fields of the values of the contract."""

    def __init__(self, cipher: Cipher, namespace: str) -> None:
        self._cipher = cipher
        self.namespace = namespace

    def in_namespace(self, namespace: str) -> FieldCipher:
        """The same cipher for the data of another namespace."""
        return FieldCipher(self._cipher, namespace)

    # ── in ───────────────────────────────────────────────────────────────────────────────────────

    def encrypt_jobs(self, jobs: Iterable[NewJob]) -> list[NewJob]:
        return [self._encrypt_job(job) for job in jobs]

    def _encrypt_job(self, job: NewJob) -> NewJob:
        payload = self._cipher.encrypt(job.payload, self._place_of(job))
        if job.unique is None:
            return replace(job, payload=payload)
        return replace(
            job, payload=payload, unique=replace(job.unique, key=self._cipher.hash_unique_key(job.unique.key))
        )

    def encrypt_edited(self, new: NewJob, job: Job) -> NewJob:
        """Encrypt new arguments of an existing job."""
        place = self._additional_data(_kind_of(job.spec), job, job.task)
        return replace(new, payload=self._cipher.encrypt(new.payload, place))

    def encrypt_move(self, move: JobMove) -> JobMove:
        """Encrypt a moved job for its new queue. Its unique key is a hash already."""
        new, checkpoint = move.new, move.checkpoint
        payload = self._cipher.encrypt(new.payload, self._additional_data(_kind_of(new), new, new.task))
        if checkpoint is not None:
            checkpoint = self._cipher.encrypt(checkpoint, self._additional_data("checkpoint", new))
        errors = tuple(self._encrypt_error(new, error) for error in move.errors)
        return replace(move, new=replace(new, payload=payload), errors=errors, checkpoint=checkpoint)

    def encrypt_entry(self, entry: NewEntry) -> NewEntry:
        """Encrypt deterministically: an unchanged entry that is put again stays equal."""
        job = entry.job
        unique = job.unique and replace(job.unique, key=self._cipher.hash_unique_key(job.unique.key))
        payload = self._cipher.encrypt(job.payload, self._place_of_entry(entry), deterministic=True)
        return replace(entry, job=replace(job, payload=payload, unique=unique))

    def encrypt_settlement(self, one: Settlement) -> Settlement:
        to, result, then = self._transition(one.lease, one.transition), one.result, one.then
        if result is not None:
            result = self._cipher.encrypt(result, self._additional_data("result", one.lease))
        if then:
            then = tuple(self.encrypt_jobs(then))
        if to is one.transition and result is None and not then:
            return one
        return replace(one, transition=to, result=result, then=then)

    def _transition(self, job: Any, to: Transition) -> Transition:
        changes: dict[str, Any] = {}
        if to.error is not None:
            changes["error"] = self._encrypt_error(job, to.error)
        if to.reason is not None and self.encrypts_reason(to.reason) and not _explains_parking(to):
            changes["reason"] = self.encrypt_reason(job, to.reason)
        return replace(to, **changes) if changes else to

    def encrypts_reason(self, reason: str) -> bool:
        """Whether this reason is encrypted: a user's own words may quote the data of the job."""
        return reason not in _OWN_WORDS

    def encrypt_reason(self, job: Any, reason: str) -> str:
        return self._cipher.encrypt_text(reason, self._additional_data("reason", job))

    def _encrypt_error(self, job: Any, error: AttemptError) -> AttemptError:
        place = self._additional_data("error", job)
        message, traceback = (
            self._cipher.encrypt_text(text, place) for text in (error.message, error.traceback)
        )
        return replace(error, message=message, traceback=traceback)

    def encrypt_heartbeat(self, request: HeartbeatRequest) -> HeartbeatRequest:
        if request.progress is None and request.checkpoint is None:
            return request
        progress, checkpoint = request.progress, request.checkpoint
        if progress is not None:
            note = self._cipher.encrypt_text(progress.note, self._additional_data("note", request.lease))
            progress = replace(progress, note=note)
        if checkpoint is not None:
            checkpoint = self._cipher.encrypt(checkpoint, self._additional_data("checkpoint", request.lease))
        return replace(request, progress=progress, checkpoint=checkpoint)

    def decrypting_offer(self, offer: WorkerOffer | None) -> WorkerOffer | None:
        """The same offer, with directly dispatched jobs decrypted as fetched ones are."""
        if offer is None or offer.take is None:
            return offer
        take = offer.take

        def taken(fetched: Fetched) -> WorkerOffer | None:
            return self.decrypting_offer(take(self.decrypt_fetched(fetched)))

        return replace(offer, take=taken)

    def encrypt_body(self, body: bytes, what: str, kind: str, name: str = "") -> bytes:
        """Encrypt a document or a log entry; `what` says which."""
        return self._cipher.encrypt(body, additional_data(what, self.namespace, kind, "", name))

    def encrypt_step(self, value: bytes, job: Ref, name: str) -> bytes:
        """Encrypt the value of a job's step."""
        return self._cipher.encrypt(value, self._additional_data("step", job, name))

    def encrypt_signal(self, data: bytes, name: str, key: str) -> bytes:
        """Encrypt the data of a signal, which is the value of a step later."""
        return self._cipher.encrypt(data, additional_data("signal", self.namespace, "", name, key))

    def encrypt_error_count(self, queue: str, one: ErrorCount) -> ErrorCount:
        """Encrypt the message of errors. A keyed hash names their group, so that the name tells nothing."""
        group = self._cipher.hash_unique_key(one.group) if self._cipher.encrypts else one.group
        place = additional_data("error group", self.namespace, queue, one.task, group)
        return replace(one, group=group, message=self._cipher.encrypt_text(one.message, place))

    # ── out ──────────────────────────────────────────────────────────────────────────────────────

    def decrypt_fetched(self, fetched: Fetched) -> Fetched:
        return replace(fetched, jobs=self.decrypt_jobs(fetched.jobs)) if fetched.jobs else fetched

    def decrypt_jobs(self, jobs: Iterable[J]) -> list[J]:
        return [cast(J, None if job is None else self._decrypt_or_mark(job)) for job in jobs]

    def _decrypt_or_mark(self, job: Job) -> Job:
        try:
            return self._decrypt_job(job)
        except Exception as error:  # noqa: BLE001  # boundary: an undecryptable field concerns its own job alone
            why = f"it cannot be opened: {error}"
            return replace(job, spec=replace(job.spec, payload=Unreadable.of(b"", why)), result=None)

    def _decrypt_job(self, job: Job) -> Job:
        decrypt = self._decrypt_batch if job.members else self._decrypt_payload
        changes: dict[str, Any] = {"spec": replace(job.spec, payload=decrypt(job))}
        if job.result is not None:
            changes["result"] = self._decrypt(job.result, self._additional_data("result", job))
        if job.checkpoint is not None:
            changes["checkpoint"] = self._decrypt(job.checkpoint, self._additional_data("checkpoint", job))
        if job.errors:
            changes["errors"] = tuple(self._decrypt_error(job, error) for error in job.errors)
        if job.progress is not None and job.progress.note:
            changes["progress"] = self._decrypt_progress(job, job.progress)
        if job.reason is not None:  # a member has the reason of its batch
            places = [self._additional_data("reason", job)]
            if job.batch is not None:
                places.append(self._additional_data("reason", Ref(job.queue, job.batch)))
            changes["reason"] = self._cipher.decrypt_text(job.reason, *places)
        return replace(job, **changes)

    def decrypt_step(self, value: bytes, job: Ref, name: str) -> bytes:
        """Decrypt the value of a job's step; `Unreadable` if that fails."""
        return self._decrypt(value, self._additional_data("step", job, name))

    def decrypt_signal(self, data: bytes, name: str, key: str) -> bytes:
        """Decrypt the data of a signal; `Unreadable` if that fails."""
        return self._decrypt(data, additional_data("signal", self.namespace, "", name, key))

    def decrypt_body(self, body: bytes, what: str, kind: str, name: str = "") -> bytes:
        """Decrypt a document or a log entry; `Unreadable` if that fails."""
        return self._decrypt(body, additional_data(what, self.namespace, kind, "", name))

    def decrypt_error_group(self, one: ErrorGroup) -> ErrorGroup:
        place = additional_data("error group", self.namespace, one.queue, one.task, one.group)
        return replace(one, message=self._cipher.decrypt_text(one.message, place))

    def decrypt_result(self, result: bytes, job: Ref) -> bytes:
        """Decrypt the result of this job; `Unreadable` if that fails."""
        return self._decrypt(result, self._additional_data("result", job))

    def decrypt_entry(self, entry: Entry) -> Entry:
        spec = entry.spec
        payload = self._decrypt(spec.job.payload, self._place_of_entry(spec))
        return replace(entry, spec=replace(spec, job=replace(spec.job, payload=payload)))

    def _decrypt_payload(self, job: Job) -> bytes:
        return self._decrypt(job.spec.payload, *self._places_of(job.spec, job.id))

    def _decrypt_batch(self, job: Job) -> bytes:
        """The payloads of a batch's members as one list; unreadable unless all of them can be decrypted."""
        payload = job.spec.payload
        try:
            (elements,) = _elements(payload)
            if len(elements) != len(job.members):
                raise CannotDecrypt("it has not as many elements as members")
            decrypted = [
                self._cipher.decrypt(bytes(element), *self._places_of_element(job.spec, id))
                for element, id in zip(elements, job.members, strict=True)
            ]
        except CannotDecrypt as error:
            return Unreadable.of(payload, f"one of its members: {error}")
        except (msgspec.DecodeError, ValueError):
            return Unreadable.of(payload, "it is not the list of what its members carry")
        return b"[[" + b",".join(decrypted) + b"]]"

    def _decrypt_error(self, job: Job, error: AttemptError) -> AttemptError:
        place = self._additional_data("error", job)
        message, traceback = (
            self._cipher.decrypt_text(text, place) for text in (error.message, error.traceback)
        )
        return replace(error, message=message, traceback=traceback)

    def _decrypt_progress(self, job: Job, progress: Progress) -> Progress:
        return replace(
            progress, note=self._cipher.decrypt_text(progress.note, self._additional_data("note", job))
        )

    def _decrypt(self, data: bytes, *places: bytes) -> bytes:
        try:
            return self._cipher.decrypt(data, *places)
        except CannotDecrypt as error:
            return Unreadable.of(data, str(error))

    # ── places ───────────────────────────────────────────────────────────────────────────────────

    def _place_of(self, job: NewJob) -> bytes:
        """The additional data of a new job's payload.

        A call whose arguments may replace those of an existing job does not know that job's id.
        """
        unique = job.unique
        if unique is None or not unique.replaces_arguments:
            return self._additional_data(_kind_of(job), job, job.task)
        return self._shared_place(
            job, "" if job.batch_terms is not None else self._cipher.hash_unique_key(unique.key)
        )

    def _places_of(self, spec: NewJob, id: str) -> list[bytes]:
        """All additional data that this job's payload may have been encrypted with."""
        places = [self._additional_data(_kind_of(spec), Ref(spec.queue, id), spec.task)]
        if spec.unique is not None:  # a call that replaced the arguments may belong to a batch or not
            places.append(self._shared_place(spec, spec.unique.key))
        if spec.batch_terms is not None or spec.unique is not None:
            places.append(self._shared_place(spec, ""))
        return places

    def _places_of_element(self, spec: NewJob, id: str) -> list[bytes]:
        """All additional data of a batch's member: only collected jobs can be members."""
        return [
            self._additional_data("element", Ref(spec.queue, id), spec.task),
            self._shared_place(spec, ""),
        ]

    def _shared_place(self, job: NewJob, unique: str) -> bytes:
        return additional_data("replacing", self.namespace, job.queue, job.task, unique)

    def _place_of_entry(self, entry: NewEntry) -> bytes:
        return additional_data("entry", self.namespace, entry.job.queue, entry.job.task, entry.name)

    def _additional_data(self, kind: str, job: Any, task: str = "") -> bytes:
        return additional_data(kind, self.namespace, job.queue, task, job.id)


def _kind_of(job: NewJob) -> str:
    """Calls and elements of batches differ, so that neither can take the place of the other."""
    return "arguments" if job.batch_terms is None else "element"


_elements = msgspec.json.Decoder(tuple[list[msgspec.Raw]]).decode
