"""What an encrypted store does with each request: what it encrypts, and what it decrypts of the answer.

The marks of fields (`core/security.py`) say which parts of requests and answers are encrypted. `ENCRYPTED`
and `DECRYPTED` say how, by the smallest type that has all of the additional data of its marked fields.
`_OWN_PLANS` has the requests that need more: another request first, or what is in the request to decrypt the
answer. A request without marks is passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from penstock.core.changes import is_as_seen
from penstock.core.flow import FlowNode
from penstock.core.job import Job, NewJob, Ref, State
from penstock.core.schedule import Entry, NewEntry
from penstock.encryption import clear_size, encrypted_size, why_not_here
from penstock.stores import contract
from penstock.stores.around import StorePlan, asked
from penstock.stores.contract import (
    MOST_FOUND,
    AnyAct,
    JobEdit,
    JobMove,
    Request,
    SearchHit,
    StepEdit,
    StreamEnds,
    answer_type,
    requests,
)
from penstock.stores.encrypted.field_cipher import FieldCipher
from penstock.stores.encrypted.marked_parts import Rules, change_of
from penstock.stores.job_matcher import JobMatcher

_Planner = Callable[[FieldCipher, Any], StorePlan[Any]]


# ── jobs and their attempts ──────────────────────────────────────────────────────────────────────


def _cancel_jobs(cipher: FieldCipher, request: contract.CancelJobs) -> StorePlan[list[State | None]]:
    """The reason is encrypted for each job by itself, so that each job is one request."""
    if not cipher.encrypts_reason(request.reason):
        return (yield from asked(request))
    once = dict.fromkeys(request.refs)
    told = yield [
        replace(request, refs=[ref], reason=cipher.encrypt_reason(ref, request.reason)) for ref in once
    ]
    answers = {ref: answer for ref, (answer,) in zip(once, told, strict=True)}
    return [answers[ref] for ref in request.refs]


def _stored(cipher: FieldCipher, seen: Sequence[Job]) -> StorePlan[list[Job | None]]:
    """The encrypted jobs, None for each that is not as an operator has seen it, or cannot be decrypted here.

    The store inside compares what it stores, so the encrypted job is read first.
    """
    found = yield from asked(contract.Get([job.ref for job in seen]))
    clear = cipher.decrypt_jobs(found)
    return [
        raw if job is not None and is_as_seen(job, one) and _is_clear(job) else None
        for raw, job, one in zip(found, clear, seen, strict=True)
    ]


def _is_clear(job: Job) -> bool:
    return why_not_here(job.spec.payload) is None and why_not_here(job.checkpoint or b"") is None


def _change_jobs(cipher: FieldCipher, request: contract.ChangeJobs) -> StorePlan[list[contract.Changed]]:
    """The store inside compares what it stores, so an edit or a move is asked with the encrypted job.

    Everything that is bound to the queue of a moved job is encrypted again.
    """
    compared = [act.seen for act in request.acts if isinstance(act, JobEdit | JobMove)]
    stored = iter((yield from _stored(cipher, compared)) if compared else [])
    sent: list[AnyAct | None] = []
    for act in request.acts:
        if isinstance(act, JobEdit | JobMove):
            raw = next(stored)
            sent.append(None if raw is None else cipher.encrypt_compared(act, raw))
        else:
            sent.append(cipher.encrypt_act(act))
    there = [act for act in sent if act is not None]
    answers = iter((yield from asked(contract.ChangeJobs(there))) if there else [])
    return [contract.Changed() if act is None else next(answers) for act in sent]


def _search(cipher: FieldCipher, request: contract.Search) -> StorePlan[contract.SearchPage]:
    """The store inside finds what matches all but the text, which is then looked for in the clear jobs."""
    filter, limit = request.filter, max(1, request.limit)
    most = MOST_FOUND if filter.text else request.limit
    page = yield from asked(replace(request, filter=replace(filter, text=""), limit=most))
    jobs = cipher.decrypt_jobs(page.jobs)
    hits = [SearchHit(job, hit.after) for job, hit in zip(jobs, page.hits, strict=True)]
    if filter.text:
        matcher = JobMatcher(filter)
        hits = [hit for hit in hits if matcher.matches(hit.job)]
        if len(hits) > limit:
            return replace(page, hits=hits[:limit], next=hits[limit - 1].after)
    return replace(page, hits=hits)


# ── documents, logs and statistics: bodies and messages are encrypted, names are clear ───────────


def _documents(cipher: FieldCipher, request: contract.Documents) -> StorePlan[contract.DocumentPage]:
    page = yield from asked(request)
    decrypt = cipher.decrypt_body
    clear = [
        replace(one, body=decrypt(one.body, "document", request.kind, one.name)) for one in page.documents
    ]
    return replace(page, documents=clear)


def _change_documents(cipher: FieldCipher, request: contract.ChangeDocuments) -> contract.ChangeDocuments:
    changes = [
        change
        if change.body is None
        else replace(change, body=cipher.encrypt_body(change.body, "document", request.kind, change.name))
        for change in request.changes
    ]
    return replace(request, changes=changes)


def _append_log(cipher: FieldCipher, request: contract.AppendLog) -> contract.AppendLog:
    entries = [cipher.encrypt_body(entry, "log", request.log) for entry in request.entries]
    return replace(request, entries=entries)


def _read_log(cipher: FieldCipher, request: contract.ReadLog) -> StorePlan[contract.LogPage]:
    page = yield from asked(request)
    decrypt = cipher.decrypt_body
    clear = [replace(one, body=decrypt(one.body, "log", request.log)) for one in page.entries]
    return replace(page, entries=clear)


def _encrypt_report(cipher: FieldCipher, report: contract.StatsReport) -> contract.StatsReport:
    return replace(report, errors=[cipher.encrypt_error_count(report.queue, one) for one in report.errors])


# ── durable steps and signals: values and data are encrypted, names are clear ────────────────────


def _clear_value(
    cipher: FieldCipher, job: Ref, step: str, value: bytes | None, signal: tuple[str, str] | None
) -> bytes | None:
    if value is None:
        return None
    return cipher.decrypt_signal(value, *signal) if signal else cipher.decrypt_step(value, job, step)


def _clear_records(
    cipher: FieldCipher, places: Iterable[tuple[Ref, str]], answers: Iterable[contract.RecordedStep]
) -> list[contract.RecordedStep]:
    return [
        replace(got, value=_clear_value(cipher, job, step, got.value, got.signal))
        for (job, step), got in zip(places, answers, strict=True)
    ]


def _record_steps(
    cipher: FieldCipher, request: contract.RecordSteps
) -> StorePlan[list[contract.RecordedStep]]:
    sent = [_encrypt_record(cipher, one) for one in request.records]
    answers = yield from asked(contract.RecordSteps(sent))
    return _clear_records(cipher, [(one.lease.ref, one.name) for one in request.records], answers)


def _forget_steps(
    cipher: FieldCipher, request: contract.ForgetSteps
) -> StorePlan[list[contract.RecordedStep]]:
    answers = yield from asked(request)
    return _clear_records(cipher, [(one.lease.ref, one.name) for one in request.removals], answers)


def _await_signals(
    cipher: FieldCipher, request: contract.AwaitSignals
) -> StorePlan[list[contract.RecordedStep]]:
    answers = yield from asked(request)
    return _clear_records(cipher, [(one.lease.ref, one.step) for one in request.waits], answers)


def _steps(cipher: FieldCipher, request: contract.ReadSteps) -> StorePlan[list[contract.StoredStep]]:
    """More may be read than is answered: encrypted values are longer."""
    largest, found = request.largest, []
    for step in (yield from asked(replace(request, largest=largest and encrypted_size(largest)))):
        if step.left_out:
            found.append(replace(step, left_out=clear_size(step.left_out)))
            continue
        value = _clear_value(cipher, request.ref, step.name, step.value, step.signal)
        clear = replace(step, value=value)
        found.append(clear if largest is None else clear.within(largest))
    return found


def _edit_steps(cipher: FieldCipher, request: contract.EditSteps) -> StorePlan[contract.EditStatus]:
    """The value of a wait is encrypted as the data of its signal."""
    known = yield from asked(
        contract.ReadSteps(request.ref, names=[edit.name for edit in request.edits], largest=0)
    )
    signals = {step.name: step.signal for step in known}

    def encrypted(edit: StepEdit) -> StepEdit:
        if edit.value is None:
            return edit
        signal = signals.get(edit.name)
        if signal is not None:
            return replace(edit, value=cipher.encrypt_signal(edit.value, *signal))
        return replace(edit, value=cipher.encrypt_step(edit.value, request.ref, edit.name))

    return (yield from asked(replace(request, edits=[encrypted(edit) for edit in request.edits])))


def _encrypt_record(cipher: FieldCipher, one: contract.StepRecord) -> contract.StepRecord:
    return replace(one, value=cipher.encrypt_step(one.value, one.lease.ref, one.name))


def _encrypt_signal(cipher: FieldCipher, one: contract.Signal) -> contract.Signal:
    return replace(one, data=cipher.encrypt_signal(one.data, one.name, one.key))


def _decrypt_signal(cipher: FieldCipher, one: contract.KeptSignal) -> contract.KeptSignal:
    return replace(one, data=cipher.decrypt_signal(one.data, one.name, one.key))


def _decrypt_waiter(cipher: FieldCipher, one: contract.SignalWaiter) -> contract.SignalWaiter:
    if one.of is None:
        return one
    return replace(one, of=cipher.decrypt_step(one.of, one.ref, f"{one.step}!of"))


# ── the tables ───────────────────────────────────────────────────────────────────────────────────

#: On the way in.
ENCRYPTED: Rules = {
    NewJob: FieldCipher.encrypt_job,
    NewEntry: FieldCipher.encrypt_entry,
    contract.HeartbeatRequest: FieldCipher.encrypt_heartbeat,
    contract.Settlement: FieldCipher.encrypt_settlement,
    contract.WorkerOffer: FieldCipher.decrypting_offer,
    contract.ChangeDocuments: _change_documents,
    contract.AppendLog: _append_log,
    contract.StatsReport: _encrypt_report,
    contract.Signal: _encrypt_signal,
}

#: On the way out.
DECRYPTED: Rules = {
    Job: FieldCipher.decrypt_job,
    Entry: FieldCipher.decrypt_entry,
    FlowNode: FieldCipher.decrypt_node,
    contract.ErrorGroup: FieldCipher.decrypt_error_group,
    contract.KeptSignal: _decrypt_signal,
    contract.SignalWaiter: _decrypt_waiter,
}

_OWN_PLANS: Mapping[type[Request[Any]], _Planner] = {
    contract.CancelJobs: _cancel_jobs,
    contract.ChangeJobs: _change_jobs,
    contract.Search: _search,
    contract.Documents: _documents,
    contract.ReadLog: _read_log,
    contract.RecordSteps: _record_steps,
    contract.ForgetSteps: _forget_steps,
    contract.AwaitSignals: _await_signals,
    contract.ReadSteps: _steps,
    contract.EditSteps: _edit_steps,
}


def _plan_of(request_type: type[Request[Any]]) -> _Planner | None:
    if request_type in _OWN_PLANS:
        return _OWN_PLANS[request_type]
    encrypt = change_of(request_type, ENCRYPTED)
    decrypt = change_of(answer_type(request_type), DECRYPTED)
    if encrypt is None and decrypt is None:
        return None

    def plan(cipher: FieldCipher, request: Request[Any]) -> StorePlan[Any]:
        answer = yield request if encrypt is None else encrypt(cipher, request)
        return answer if decrypt is None else decrypt(cipher, answer)

    return plan


#: None: nothing of this request or its answer is encrypted, so it is passed on.
PLANS: Mapping[type[Request[Any]], _Planner | None] = {
    request: _plan_of(request) for request in requests().values() if request is not StreamEnds
}
