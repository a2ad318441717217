"""The right that each method of the inspector needs: one table for all interfaces.

The command line acts with all rights, because its user can open the store. An interface that serves others
asks `right_of` before it calls a method, and checks the right on the queues that the call names.
"""

from __future__ import annotations

from penstock.core.errors import ConfigError
from penstock.core.security import Right
from penstock.inspector.job_acts import JobAct

_READ = (
    *(
        "search",
        "job",
        "rows",
        "matching",
        "prepare_undo",
        "why",
        "refs",
        "batches",
        "started_batches",
        "queues",
        "queue",
        "parked",
    ),
    *(
        "stats",
        "entries",
        "entry",
        "upcoming",
        "runs",
        "entry_page",
        "workers",
        "worker",
        "checkup",
        "overview",
    ),
    *("store_checkup", "response_times", "audit"),
    *("flows.flows", "flows.flow", "flows.flow_nodes", "flows.graph", "flows.members", "flows.leaves"),
    *("flows.steps", "flows.waits", "flows.signals"),
    *("bulk.dry_run", "bulk.selected", "bulk.all", "bulk.get"),
    *("statistics.tasks", "statistics.periods", "statistics.errors", "statistics.sizes"),
    *("statistics.identities", "statistics.depths", "statistics.depth_periods"),
)
_OPERATE = (
    *("retry", "cancel", "delete", "reschedule", "discard", "complete", "move"),
    *("edit", "edit_and_retry"),
    *("undo", "flush_batch"),
    *("pause", "resume", "pause_entry", "resume_entry", "trigger_entry"),
    *("flows.cancel_flow", "flows.retry_flow", "flows.send", "flows.drop_signal"),
    *("flows.drop_step", "flows.set_step"),
    *("bulk.start", "bulk.abort", "bulk.next_free", "bulk.step"),
    "enqueue",  # by hand, from an interface for operators
)
#: These change what others may do, or more than single jobs.
_ADMIN = (
    *("close", "open", "set_limits", "reset_limits", "purge", "delete_queue"),
    *("put_entry", "remove_entry", "tell_workers"),
)

#: The right of each method, by its path from the inspector (`pause`, `bulk.start`), of each act on jobs
#: (`act.retry`), which is also that of a bulk act, and of `enqueue`.
RIGHTS: dict[str, Right] = {
    **dict.fromkeys(_READ, Right.READ),
    **dict.fromkeys(_OPERATE, Right.OPERATE),
    **dict.fromkeys((f"act.{act.value}" for act in JobAct), Right.OPERATE),
    **dict.fromkeys(_ADMIN, Right.ADMIN),
}


def right_of(act: str | JobAct) -> Right:
    """The right that a method or an act on jobs needs. Raises ConfigError for an unknown one."""
    name = f"act.{act.value}" if isinstance(act, JobAct) else act
    found = RIGHTS.get(name)
    if found is None:
        raise ConfigError(f"there is no act {name!r} of an operator")
    return found
