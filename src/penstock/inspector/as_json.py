"""The one encoder of what the inspector answers: data for JSON, as the command line prints it.

Instants are ISO 8601 in UTC to the millisecond, durations are seconds; lease tokens are never shown.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from penstock.core.flow import FlowInfo, FlowNode
from penstock.core.formats import instant, iso, json_or_base64, seconds
from penstock.core.job import Job
from penstock.core.limits import QueueLimits
from penstock.inspector.entries import EntryView
from penstock.inspector.job_views import ROW, WHOLE, JobView, line_facts, row_of
from penstock.inspector.queue_views import QueueView, limit_values
from penstock.inspector.reasons import WhyView
from penstock.inspector.statistics import ErrorGroupView, PeriodDepthView, PeriodStatsView
from penstock.inspector.step_views import DurableStepView
from penstock.inspector.worker_views import WorkerView
from penstock.stores.contract import BatchInfo, KeptSignal
from penstock.stores.job_log import LogLine


def as_json(value: Any) -> Any:
    """The value as data that `msgspec.json` encodes."""
    match value:
        case dict():
            return {name: as_json(one) for name, one in value.items()}
        case list() | tuple():
            return [as_json(one) for one in value]
    form = _form(value)
    return value if form is value else as_json(form)


@singledispatch
def _form(value: Any) -> Any:
    """The form of a value: of a struct without one of its own, its fields."""
    if isinstance(value, msgspec.Struct) and not value.__struct_config__.array_like:
        return asdict(value)
    return value


@_form.register
def _job(job: Job) -> dict[str, Any]:
    facts = row_of(job).to_dict()
    return {name: facts[name] for name in ROW}


@_form.register
def _whole_job(job: JobView) -> dict[str, Any]:
    # payload and result as they are stored: their numbers may be larger than Python reads them
    facts = replace(job, result=None).to_dict(payload=False)
    facts["payload"], facts["payload_base64"] = json_or_base64(job.spec.payload)
    facts["result"], facts["result_base64"] = json_or_base64(job.result)
    return {name: facts[name] for name in WHOLE}


@_form.register
def _log_line(line: LogLine) -> dict[str, Any]:
    return line_facts(line)


@_form.register
def _why(why: WhyView) -> dict[str, Any]:
    return {**asdict(why), "since": instant(why.since)}


@_form.register
def _queue(queue: QueueView) -> dict[str, Any]:
    return {
        "name": queue.name,
        "counts": {state.value: n for state, n in queue.counts.items()},
        "paused": queue.paused,
        "closed": queue.closed,
        "oldest_available_at": iso(queue.oldest_available),
        "limits": _limits(queue.limits),
        "throttled_until": iso(queue.throttled_until),
        "waits_for": queue.waits_for,
        "away": queue.away,
        "set_by": queue.set_by,
        "by_code": {name: _limit(name, value) for name, value in queue.by_code.items()},
        "workers": queue.workers,
        "held_by": queue.held_by,
        "stopped_by": None if queue.stopped_by is None else str(queue.stopped_by),
    }


def _limits(limits: QueueLimits) -> dict[str, Any]:
    return {name: _limit(name, value) for name, value in limit_values(limits).items()}


def _limit(name: str, value: Any) -> Any:
    return value / 1000 if value is not None and name.endswith("_for") else value


@_form.register
def _batch(batch: BatchInfo) -> dict[str, Any]:
    return {
        "queue": batch.queue,
        "task": batch.task,
        "key": batch.key,
        "size": batch.size,
        "oldest_at": instant(batch.oldest),
        "due_at": iso(batch.due),
    }


@_form.register
def _worker(worker: WorkerView) -> dict[str, Any]:
    return {
        "id": worker.id,
        "host": worker.host,
        "pid": worker.pid,
        "supervisor": worker.supervisor,
        "state": worker.state,
        "started_at": instant(worker.started_at),
        "seen_at": instant(worker.seen_at),
        "queues": worker.queues,
        "tasks": worker.tasks,
        "concurrency": worker.concurrency,
        "running": worker.running,
        "version": worker.version,
        "memory": worker.memory,
        "cpu": worker.cpu,
        "jobs": [
            {
                "queue": job.queue,
                "id": job.id,
                "task": job.task,
                "attempt": job.attempt,
                "since": iso(job.fetched_at),
                "started": job.started,
                "progress": None if job.progress is None else job.progress.to_dict(),
                "age": seconds(job.fetched_at, worker.now),
            }
            for job in worker.jobs
        ],
        "more": worker.more,
        "silent": worker.silent,
        "ahead": worker.ahead,
    }


@_form.register
def _entry(entry: EntryView) -> dict[str, Any]:
    spec = entry.spec
    payload, base64 = json_or_base64(spec.job.payload)
    return {
        "queue": entry.queue,
        "name": spec.name,
        "task": spec.job.task,
        "schedule": entry.schedule,
        "tz": entry.tz,
        "paused": entry.paused,
        "by": entry.by,
        "next_at": iso(entry.next_at),
        "misfire": spec.misfire,
        "catch_up": spec.catch_up,
        "overlap": spec.overlap,
        "jitter": spec.jitter / 1000,
        "last": entry.last,
        "enqueued": entry.enqueued,
        "skipped": entry.skipped,
        "payload": payload,
        "payload_base64": base64,
        "words": entry.words,
        "unserved": entry.unserved,
        "skipping": entry.skipping,
    }


@_form.register
def _flow(flow: FlowInfo) -> dict[str, Any]:
    spec = flow.spec
    return {
        "id": spec.id,
        "queue": spec.queue,
        "name": spec.name,
        "state": flow.state,
        "policy": spec.policy,
        "created_at": instant(flow.created_at),
        "ended_at": iso(flow.ended_at),
        "nodes": flow.total,
        "counts": {state.value: n for state, n in flow.counts.items()},
        "wakes": spec.wakes or None,
    }


@_form.register
def _node(node: FlowNode) -> dict[str, Any]:
    return {
        "node": node.index,
        "state": node.state,
        "when": node.when,
        "task": node.task,
        "queue": None if node.job is None else node.job.queue,
        "job": None if node.job is None else node.job.id,
        "next": node.next,
    }


@_form.register
def _signal(one: KeptSignal) -> dict[str, Any]:
    data, base64 = json_or_base64(one.data)
    return {
        "name": one.name,
        "key": one.key,
        "flow": one.flow,
        "size": len(one.data),
        "sent_at": instant(one.sent_at),
        "keep_until": instant(one.keep_until),
        "data": data,
        "data_base64": base64,
    }


@_form.register
def _step(step: DurableStepView) -> dict[str, Any]:
    aside = [{**asdict(one), "at": instant(one.at)} for one in step.aside]
    return {
        **asdict(step),
        "at": instant(step.at),
        "due_at": iso(step.due_at),
        "aside": aside,
    }


@_form.register(PeriodStatsView)
@_form.register(PeriodDepthView)
def _period(period: PeriodStatsView | PeriodDepthView) -> dict[str, Any]:
    return {**asdict(period), "at": instant(period.at)}


@_form.register
def _errors(group: ErrorGroupView) -> dict[str, Any]:
    return {
        "queue": group.queue,
        "task": group.task,
        "kind": group.kind,
        "message": group.message,
        "count": group.count,
        "first_at": instant(group.first),
        "last_at": instant(group.last),
        "job": group.job,
        "renamed": group.renamed,
    }
