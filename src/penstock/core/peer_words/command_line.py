"""Words of other systems for commands and options of the command line, and for settings."""

from __future__ import annotations

_BEAT = "not needed: any worker enqueues the periodic jobs; see `penstock periodic`"
_PURGE = "use `penstock queues purge NAME`"
_LOG = "use --log-level"
_APP = "name the app as an argument, `penstock worker MODULE:app`, or with --app MODULE:app"
_POOL = "chosen per task: @app.task(run_in=...) with async, thread or process"
_CHILD = "use --max-jobs-per-child, of `penstock worker`"
_DRAIN = "use --drain-timeout, of `penstock worker`"
_QUEUES = "use --queues, of `penstock worker`"
_SLOTS = "use --concurrency, of `penstock worker`"
_PROCESSES = "use --processes, of `penstock worker`"
_FILE = "use penstock.toml, or name another file in PENSTOCK_CONFIG"
_ID = "there is none: a worker's id has its host and process; see `penstock workers`"

_COMMANDS = {
    "Celery": {
        "amqp": "use `penstock queues`",
        "beat": _BEAT,
        "call": "use `penstock enqueue`",
        "control": "use `penstock queues`, `penstock jobs` and `penstock workers`",
        "events": "use `penstock stats` and `penstock jobs list`",
        "flower": "use `penstock stats`, `penstock queues list` and `penstock jobs list`",
        "inspect": "use `penstock workers list` and `penstock jobs list --state running`",
        "multi": "use `penstock worker --processes N`",
        "purge": _PURGE,
        "report": "use `penstock doctor`",
        "result": "use `penstock jobs show ID`",
        "status": "use `penstock workers list`",
    },
    "RQ": {
        "cron": _BEAT,
        "empty": _PURGE,
        "info": "use `penstock queues list` and `penstock workers list`",
        "requeue": "use `penstock jobs retry ID`",
        "resume": "use `penstock queues resume NAME`",
        "suspend": "use `penstock queues pause NAME`",
        "worker-pool": "use `penstock worker --processes N`",
    },
    "taskiq": {"scheduler": _BEAT},
    "asynq": {
        "cron": _BEAT,
        "dash": "use `penstock stats` and `penstock queues list`",
        "queue": "use `penstock queues`",
        "server": "use `penstock workers list`",
        "task": "use `penstock jobs`",
    },
    "": {
        "cancel": "use `penstock jobs cancel ID`",
        "health": "use `penstock doctor`",
        "list": "use `penstock jobs list`",
        "pause": "use `penstock queues pause NAME`",
        "retry": "use `penstock jobs retry ID`",
        "run": "use `penstock worker MODULE:app`",
        "schedule": "use `penstock periodic`",
        "set": "use `penstock queues set NAME`",
        "settings": "use `penstock config`",
        "start": "use `penstock worker MODULE:app`",
    },
}
_OPTIONS = {
    "Celery": {
        "-A": _APP,
        "-B": _BEAT,
        "-E": "not needed: workers report to the store",
        "-P": _POOL,
        "-Q": _QUEUES,
        "-l": _LOG,
        "--autoscale": "there is none: --concurrency is the maximum of attempts at the same time",
        "--beat": _BEAT,
        "--broker": "use --url",
        "--hostname": _ID,
        "--loglevel": _LOG,
        "--max-tasks-per-child": _CHILD,
        "--pool": _POOL,
        "--prefetch-multiplier": "not needed: a worker leases what it can start at once",
        "--task-events": "not needed: workers report to the store",
        "--time-limit": "set per task: @app.task(timeout=...)",
        "--soft-time-limit": "set per task: @app.task(timeout=...)",
    },
    "RQ": {
        "--logging_level": _LOG,
        "--logging-level": _LOG,
        "--results-ttl": "set per task: @app.task(retention=...)",
        "--with-scheduler": _BEAT,
        "--worker-ttl": "use the setting `lease` of penstock.toml",
    },
    "arq": {
        "--check": "use `penstock doctor` and `penstock workers list`",
        "--custom-log-dict": "use --log-format",
        "--watch": "use --reload, of `penstock worker`",
    },
    "Sidekiq": {
        "-C": _FILE,
        "-r": _APP,
        "-t": _DRAIN,
        "--config": _FILE,
        "--environment": "there is none: choose by PENSTOCK_... variables",
        "--require": _APP,
    },
    "dramatiq": {"--worker-shutdown-timeout": _DRAIN, "--watch": "use --reload, of `penstock worker`"},
    "taskiq": {
        "--fs-discover": "use App(include=[...])",
        "--max-async-tasks": _SLOTS,
        "--max-tasks-per-child": _CHILD,
        "--shutdown-timeout": _DRAIN,
    },
    "": {
        "--slots": f"{_SLOTS}; per queue --queues mail:slots=N",
        "--threads": _SLOTS,
        "--verbose": _LOG,
        "--workers": _PROCESSES,
    },
}
_URL = "use url"
_ATTEMPT = "use timeout, the time limit of one attempt"
_TASKS = "use App(include=[...])"
_SETTINGS = {
    "Celery": {
        "beat_schedule": "use app.periodic(...) in code, or `penstock periodic add`",
        "broker_url": _URL,
        "imports": _TASKS,
        "include": _TASKS,
        "result_backend": "not needed: results are kept in the app's store",
        "result_expires": "use retention",
        "task_acks_late": "always so: a job is settled after its attempt has ended",
        "task_always_eager": "use penstock.testing.inline(app) in tests",
        "task_default_queue": "use queue",
        "task_soft_time_limit": _ATTEMPT,
        "task_time_limit": _ATTEMPT,
        "visibility_timeout": "use lease; a heartbeat extends it while the job runs",
        "worker_concurrency": "use concurrency",
        "worker_max_memory_per_child": "use max_memory_per_child",
        "worker_max_tasks_per_child": "use max_jobs_per_child",
    },
    "arq": {
        "health_check_interval": "use announce",
        "job_completion_wait": "use drain_timeout",
        "job_timeout": _ATTEMPT,
        "keep_result": "use retention",
        "max_jobs": "use concurrency",
        "max_tries": "use max_attempts",
        "poll_delay": "use safety_poll; workers are notified and need no short one",
        "queue_name": "use queue",
        "redis_settings": _URL,
    },
    "": {
        "broker": _URL,
        "database_url": _URL,
        "rate": "of one queue: use `penstock queues set NAME --rate 5/s`",
        "max_running": "of one queue: use `penstock queues set NAME --max-running N`",
        "redis_url": _URL,
        "shutdown_timeout": "use drain_timeout",
        "slots": "use concurrency; per queue queues=mail:slots=N",
        "workers": "use processes",
    },
}

WORDS = {"command": _COMMANDS, "command option": _OPTIONS, "setting": _SETTINGS}
