"""Words of other systems for methods and attributes of tasks, apps, handles and the running attempt."""

from __future__ import annotations

_ENQUEUE = "use task.enqueue(...) or await task.aenqueue(...)"
_USING = 'use task.using(...).enqueue(...), as in task.using(delay="5m").enqueue(42)'
_IN = 'use task.using(delay="5m").enqueue(...)'
_AT = "use task.using(run_at=...).enqueue(...)"
_MANY = "use app.enqueue_many([task.job(...), ...])"
_CALL = "call the task itself, task(...)"
_FUNCTION = "use task.function"
_JOB = "use task.job(...), which app.enqueue_many(...) stores, and chain(), group() and chord() connect"
_CURRENT = "use current_job() inside the function"
_PROGRESS = "use current_job().progress(...) inside the function"
_HANDLE = "use app.handle(id)"

_TASKS = {
    "Celery": {
        "apply": _CALL,
        "apply_async": _USING,
        "AsyncResult": _HANDLE,
        "delay": _ENQUEUE,
        "request": _CURRENT,
        "run": _CALL,
        "s": _JOB,
        "si": _JOB,
        "signature": _JOB,
        "subtask": _JOB,
        "update_state": _PROGRESS,
    },
    "RQ": {"delay": _ENQUEUE, "enqueue_at": _AT, "enqueue_in": _IN},
    "arq": {"enqueue_job": _ENQUEUE},
    "Sidekiq": {
        "perform_async": _ENQUEUE,
        "perform_at": _AT,
        "perform_bulk": _MANY,
        "perform_in": _IN,
        "perform_inline": _CALL,
        "set": _USING,
    },
    "dramatiq": {
        "fn": _FUNCTION,
        "message": _JOB,
        "send": _ENQUEUE,
        "send_with_options": _USING,
    },
    "taskiq": {
        "kicker": _USING,
        "kiq": _ENQUEUE,
        "original_func": _FUNCTION,
        "schedule_by_time": _AT,
    },
    "Huey": {"call_local": _CALL, "schedule": _USING},
    "Procrastinate": {
        "batch_defer": _MANY,
        "configure": _USING,
        "defer": _ENQUEUE,
        "defer_async": _ENQUEUE,
    },
}
_WORKER = "use `penstock worker MODULE:app`, or Worker(app) in your own event loop"
_CONFIG = "use penstock.toml or PENSTOCK_... variables; `penstock config` shows them"
_OPERATE = "use `penstock queues`, `penstock jobs` and `penstock workers`"
_PERIODIC = "use app.periodic(...)"
_MIDDLEWARE = "use app.around_attempt(...) or app.around_enqueue(...)"
_APPS = {
    "Celery": {
        "add_periodic_task": _PERIODIC,
        "AsyncResult": _HANDLE,
        "conf": _CONFIG,
        "config_from_object": _CONFIG,
        "control": _OPERATE,
        "on_after_configure": "use app.on_startup(...)",
        "send_task": "use app.enqueue_raw(queue, payload, task) for a task that is only known by its name",
        "signature": _JOB,
        "start": _WORKER,
        "worker_main": _WORKER,
    },
    "RQ": {
        "empty": "use `penstock queues purge NAME`",
        "enqueue": _ENQUEUE,
        "enqueue_at": _AT,
        "enqueue_call": _USING,
        "enqueue_in": _IN,
        "fetch_job": _HANDLE,
        "get_jobs": "use `penstock jobs list`",
        "job": "use app.task",
    },
    "arq": {"enqueue_job": _ENQUEUE, "queued_jobs": "use `penstock jobs list`"},
    "dramatiq": {"actor": "use app.task", "add_middleware": _MIDDLEWARE},
    "taskiq": {
        "add_middlewares": _MIDDLEWARE,
        "on_event": "use app.on_startup(...) or app.on_shutdown(...)",
        "shutdown": "use app.close() or await app.aclose()",
        "startup": "not needed: an app connects at its first enqueue",
        "with_middlewares": _MIDDLEWARE,
        "with_result_backend": "not needed: results are kept in the app's store",
    },
    "Huey": {"periodic_task": _PERIODIC},
    "Procrastinate": {"configure_task": _USING, "run_worker": _WORKER, "run_worker_async": _WORKER},
    "": {
        "cron": _PERIODIC,
        "run": _WORKER,
        "schedule": _PERIODIC,
        "worker": _WORKER,
    },
}
_RESULT = "use handle.result(timeout=...) or await handle.aresult(timeout=...)"
_STATUS = "use handle.status() or await handle.astatus()"
_FACTS = "use handle.job() or await handle.ajob(), which has all facts of the job"
_CANCEL = "use handle.cancel() or await handle.acancel()"
_ID = "use handle.id"
_HANDLES = {
    "Celery": {
        "date_done": _FACTS,
        "failed": _STATUS,
        "forget": "use `penstock jobs delete ID`",
        "get": _RESULT,
        "info": _FACTS,
        "ready": _STATUS,
        "revoke": _CANCEL,
        "state": _STATUS,
        "successful": _STATUS,
        "task_id": _ID,
        "traceback": _FACTS,
        "wait": _RESULT,
    },
    "RQ": {
        "delete": "use `penstock jobs delete ID`",
        "exc_info": _FACTS,
        "get_status": _STATUS,
        "is_failed": _STATUS,
        "is_finished": _STATUS,
        "is_queued": _STATUS,
        "is_started": _STATUS,
        "latest_result": _RESULT,
        "meta": _FACTS,
        "refresh": "not needed: handle.status() and handle.job() ask the store",
        "requeue": "use handle.retry() or await handle.aretry()",
        "return_value": _RESULT,
    },
    "arq": {"abort": _CANCEL, "info": _FACTS, "job_id": _ID, "result_info": _FACTS},
    "Sidekiq": {"jid": _ID},
    "dramatiq": {"get_result": _RESULT, "message_id": _ID},
    "taskiq": {
        "get_progress": "use handle.follow_progress(), or handle.job().progress",
        "get_result": _RESULT,
        "is_ready": _STATUS,
        "task_id": _ID,
        "wait_result": _RESULT,
    },
    "Huey": {"revoke": _CANCEL},
    "": {"progress": "use handle.follow_progress(), or handle.job().progress"},
}
_RETRY = 'raise Retry(delay="5s") in the function; Snooze("5s") does not count the attempt'
_ENQUEUED = "use current_job().job.enqueued_at, ms since 1970"
_REPORT = "use current_job().progress(...)"
_ATTEMPTS = {
    "Celery": {
        "is_aborted": "use current_job().cancelled",
        "request": "use current_job().id, .task, .queue, .attempt and .headers",
        "retries": "use current_job().attempt, which is 1 for the first attempt",
        "retry": _RETRY,
        "update_state": _REPORT,
    },
    "RQ": {
        "enqueued_at": _ENQUEUED,
        "meta": _REPORT,
        "save_meta": _REPORT,
    },
    "arq": {
        "enqueue_time": _ENQUEUED,
        "job_id": "use current_job().id",
        "job_try": "use current_job().attempt",
        "score": "use current_job().job.run_at, ms since 1970",
    },
    "Sidekiq": {"jid": "use current_job().id", "bid": "use current_job().job.batch"},
    "dramatiq": {"message_id": "use current_job().id"},
    "taskiq": {"requeue": _RETRY},
}

_STATE = "use job.state"
_RAISED = "use job.errors, oldest first: each has .kind, .message and .traceback"
_JOBS = {
    "Celery": {"date_done": "use job.ended_at, ms since 1970", "status": _STATE, "traceback": _RAISED},
    "RQ": {
        "created_at": "use job.enqueued_at, ms since 1970",
        "exc_info": _RAISED,
        "func_name": "use job.task",
        "get_status": _STATE,
        "is_finished": "use job.ended",
        "meta": "use job.progress, or job.spec.headers",
    },
    "arq": {"job_try": "use job.attempt", "success": "use job.state"},
    "": {"status": _STATE, "error": _RAISED},
}

WORDS = {"Task": _TASKS, "App": _APPS, "Handle": _HANDLES, "Attempt": _ATTEMPTS, "Job": _JOBS}
