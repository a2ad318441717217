"""The field cipher: encrypts and decrypts fields of the values that pass through an encrypted store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, cast

import msgspec
from msgspec.structs import replace

from penstock.core.flow import FlowNode
from penstock.core.job import AttemptError, Job, NewJob, Progress, Ref, State
from penstock.core.lifecycle import (
    ASK_CANCELLED,
    CANNOT_BE_READ,
    COMPLETED_BY_HAND,
    DISCARDED,
    EXPIRED,
    OPERATOR_CANCELLED,
    RUNNING_CANCELLED,
    UNKNOWN_TASK,
    Transition,
)
from penstock.core.outcomes import Cancelled
from penstock.core.schedule import Entry, NewEntry
from penstock.encryption import CannotDecrypt, Cipher, Unreadable, additional_data
from penstock.stores.contract import (
    AnyAct,
    ErrorCount,
    ErrorGroup,
    Fetched,
    HeartbeatRequest,
    JobCompletion,
    JobDiscard,
    JobEdit,
    JobMove,
    Settlement,
    WorkerOffer,
)

J = TypeVar("J", bound="Job | None")

#: The reasons that stay clear, so that operators without the key can read them: they quote nothing. Any other
#: reason is encrypted, also if Penstock has worded it, as it may quote data of the job.
_OWN_WORDS = frozenset(
    {
        *(ASK_CANCELLED, COMPLETED_BY_HAND, DISCARDED, EXPIRED, OPERATOR_CANCELLED),
        *(RUNNING_CANCELLED, Cancelled().reason),
    }
)


def _explains_parking(to: Transition) -> bool:
    """Whether the reason is one for parking a job that quotes nothing of it: that stays clear, too."""
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
        return [self.encrypt_job(job) for job in jobs]

    def encrypt_job(self, job: NewJob) -> NewJob:
        return self._with_payload(job, self._cipher.encrypt(job.payload, self._aad_of(job)))

    def _with_payload(self, job: NewJob, payload: bytes) -> NewJob:
        """The job with this encrypted payload. Its unique key is hashed, unless it is a hash already."""
        if job.unique is None:
            return replace(job, payload=payload)
        key = self._cipher.hash_unique_key(job.unique.key)
        return replace(job, payload=payload, unique=replace(job.unique, key=key))

    def encrypt_act(self, act: AnyAct) -> AnyAct:
        """Encrypt the reason and the result of an act."""
        if isinstance(act, JobCompletion) and act.result is not None:
            act = replace(
                act, result=self._cipher.encrypt(act.result, self._additional_data("result", act.ref))
            )
        if isinstance(act, JobDiscard | JobCompletion) and self.encrypts_reason(act.reason):
            return replace(act, reason=self.encrypt_reason(act.ref, act.reason))
        return act

    def encrypt_compared(self, act: JobEdit | JobMove, job: Job) -> JobEdit | JobMove:
        """Encrypt an edit or a move of a job, given the job as it is stored."""
        if isinstance(act, JobMove):
            return self._encrypt_move(act, job)
        aad = self._additional_data(_kind_of(job.spec), job, job.task)
        new = self._with_payload(act.new, self._cipher.encrypt(act.new.payload, aad))
        return JobEdit(job, new)

    def _encrypt_move(self, move: JobMove, job: Job) -> JobMove:
        new, checkpoint = move.new, move.checkpoint
        payload = self._cipher.encrypt(new.payload, self._additional_data(_kind_of(new), new, new.task))
        if checkpoint is not None:
            checkpoint = self._cipher.encrypt(checkpoint, self._additional_data("checkpoint", new))
        errors = tuple(self._encrypt_error(new, error) for error in move.errors)
        return JobMove(job, self._with_payload(new, payload), errors, checkpoint)

    def encrypt_entry(self, entry: NewEntry) -> NewEntry:
        """Encrypt deterministically: an unchanged entry that is put again stays equal."""
        job = entry.job
        payload = self._cipher.encrypt(job.payload, self._aad_of_entry(entry), deterministic=True)
        return replace(entry, job=self._with_payload(job, payload))

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
        """Whether this reason is encrypted: it may quote data of the job, unless it is in `_OWN_WORDS`."""
        return reason not in _OWN_WORDS

    def encrypt_reason(self, job: Any, reason: str) -> str:
        return self._cipher.encrypt_text(reason, self._additional_data("reason", job))

    def _encrypt_error(self, job: Any, error: AttemptError) -> AttemptError:
        aad = self._additional_data("error", job)
        message, traceback = (
            self._cipher.encrypt_text(text, aad) for text in (error.message, error.traceback)
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

    def decrypting_offer(self, offer: WorkerOffer) -> WorkerOffer:
        """The same offer, with directly dispatched jobs decrypted as fetched ones are."""
        if offer.take is None:
            return offer
        take = offer.take

        def taken(fetched: Fetched) -> WorkerOffer | None:
            following = take(replace(fetched, jobs=self.decrypt_jobs(fetched.jobs)))
            return following and self.decrypting_offer(following)

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
        aad = additional_data("error group", self.namespace, queue, one.task, group)
        return replace(one, group=group, message=self._cipher.encrypt_text(one.message, aad))

    # ── out ──────────────────────────────────────────────────────────────────────────────────────

    def decrypt_jobs(self, jobs: Iterable[J]) -> list[J]:
        return [cast(J, None if job is None else self.decrypt_job(job)) for job in jobs]

    def decrypt_job(self, job: Job) -> Job:
        """Decrypt a job; its payload is `Unreadable` if that fails."""
        try:
            return self._decrypt_fields(job)
        except Exception as error:  # noqa: BLE001  # boundary: an undecryptable field concerns its own job alone
            why = f"it cannot be decrypted: {error}"
            return replace(job, spec=replace(job.spec, payload=Unreadable.of(b"", why)), result=None)

    def _decrypt_fields(self, job: Job) -> Job:
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
            aads = [self._additional_data("reason", job)]
            if job.batch is not None:
                aads.append(self._additional_data("reason", Ref(job.queue, job.batch)))
            changes["reason"] = self._cipher.decrypt_text(job.reason, *aads)
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
        aad = additional_data("error group", self.namespace, one.queue, one.task, one.group)
        return replace(one, message=self._cipher.decrypt_text(one.message, aad))

    def decrypt_node(self, node: FlowNode) -> FlowNode:
        """Decrypt the result of a node. An empty one stands for a result that was removed after its use."""
        if not node.result or node.job is None:
            return node
        return replace(node, result=self._decrypt(node.result, self._additional_data("result", node.job)))

    def decrypt_entry(self, entry: Entry) -> Entry:
        spec = entry.spec
        payload = self._decrypt(spec.job.payload, self._aad_of_entry(spec))
        return replace(entry, spec=replace(spec, job=replace(spec.job, payload=payload)))

    def _decrypt_payload(self, job: Job) -> bytes:
        return self._decrypt(job.spec.payload, *self._aads_of(job.spec, job.id))

    def _decrypt_batch(self, job: Job) -> bytes:
        """The payloads of a batch's members as one list; unreadable unless all of them can be decrypted."""
        payload = job.spec.payload
        try:
            (elements,) = _elements(payload)
            if len(elements) != len(job.members):
                raise CannotDecrypt("it has not as many elements as members")
            decrypted = [
                self._cipher.decrypt(bytes(element), *self._aads_of_element(job.spec, id))
                for element, id in zip(elements, job.members, strict=True)
            ]
        except CannotDecrypt as error:
            return Unreadable.of(payload, f"one of its members: {error}")
        except (msgspec.DecodeError, ValueError):
            return Unreadable.of(payload, "it is not the list of what its members carry")
        return b"[[" + b",".join(decrypted) + b"]]"

    def _decrypt_error(self, job: Job, error: AttemptError) -> AttemptError:
        aad = self._additional_data("error", job)
        message, traceback = (
            self._cipher.decrypt_text(text, aad) for text in (error.message, error.traceback)
        )
        return replace(error, message=message, traceback=traceback)

    def _decrypt_progress(self, job: Job, progress: Progress) -> Progress:
        return replace(
            progress, note=self._cipher.decrypt_text(progress.note, self._additional_data("note", job))
        )

    def _decrypt(self, data: bytes, *aads: bytes) -> bytes:
        try:
            return self._cipher.decrypt(data, *aads)
        except CannotDecrypt as error:
            return Unreadable.of(data, str(error))

    # ── additional authenticated data (AAD) ──────────────────────────────────────────────────────

    def _aad_of(self, job: NewJob) -> bytes:
        """The AAD of a new job's payload.

        A call whose arguments may replace those of an existing job does not know that job's id.
        """
        unique = job.unique
        if unique is None or not unique.replaces_arguments:
            return self._additional_data(_kind_of(job), job, job.task)
        return self._shared_aad(
            job, "" if job.batch_terms is not None else self._cipher.hash_unique_key(unique.key)
        )

    def _aads_of(self, spec: NewJob, id: str) -> list[bytes]:
        """All AADs that this job's payload may have been encrypted with."""
        aads = [self._additional_data(_kind_of(spec), Ref(spec.queue, id), spec.task)]
        if spec.unique is not None:  # a call that replaced the arguments may belong to a batch or not
            aads.append(self._shared_aad(spec, spec.unique.key))
        if spec.batch_terms is not None or spec.unique is not None:
            aads.append(self._shared_aad(spec, ""))
        return aads

    def _aads_of_element(self, spec: NewJob, id: str) -> list[bytes]:
        """All AADs of a batch's member: only collected jobs can be members."""
        return [
            self._additional_data("element", Ref(spec.queue, id), spec.task),
            self._shared_aad(spec, ""),
        ]

    def _shared_aad(self, job: NewJob, unique: str) -> bytes:
        """The AAD of arguments that may become those of another job: it names none."""
        return additional_data("replacing", self.namespace, job.queue, job.task, unique)

    def _aad_of_entry(self, entry: NewEntry) -> bytes:
        return additional_data("entry", self.namespace, entry.job.queue, entry.job.task, entry.name)

    def _additional_data(self, kind: str, job: Any, task: str = "") -> bytes:
        return additional_data(kind, self.namespace, job.queue, task, job.id)


def _kind_of(job: NewJob) -> str:
    """Calls and elements of batches differ, so that neither can take the place of the other."""
    return "arguments" if job.batch_terms is None else "element"


_elements = msgspec.json.Decoder(tuple[list[msgspec.Raw]]).decode
