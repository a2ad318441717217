"""Words of other systems for options of tasks, calls, apps and periodic entries."""

from __future__ import annotations

_DELAY = 'use task.using(delay="5m")'
_RUN_AT = "use task.using(run_at=...), an aware datetime"
_EXPIRES = "use @app.task(expires=...) or task.using(expires=...)"
_ID = "use task.using(id=...)"
_QUEUE = "use @app.task(queue=...) or task.using(queue=...)"
_NAME = "use @app.task(name=...)"
_TIMEOUT = "use @app.task(timeout=...), the time limit of one attempt"
_RETENTION = "use @app.task(retention=...)"
_ATTEMPTS = "use @app.task(max_attempts=...), which counts the first attempt, too"
_WAIT = "use @app.task(retry=...): a duration, several, or a policy such as exponential(...)"
_CURRENT = "not needed: call current_job() in the function, which takes no extra parameter"
_CALLBACK = "use @app.task(on_success=...), a callback that may enqueue the next job"
_DEAD = "use @app.task(on_dead=...)"
_PERIODIC = "use @app.periodic(...) above @app.task"
_URL = "use App(url=...)"
_KEPT = "not needed: results are kept in the app's store, for as long as @app.task(retention=...) says"
_MIDDLEWARE = "use app.around_attempt(...) or app.around_enqueue(...)"
_JSON = "not needed: arguments are stored as JSON, with the types of your annotations"
_HEADERS = "use @app.task(headers=...) or task.using(headers=...)"
_AFTER = "there is no such option: use chain(first, second) or @app.task(on_success=...)"
_RATE = (
    'use App(queues={"mail": QueueDefaults(rate="5/s")}) or `penstock queues set NAME --rate 5/s`; '
    "per key @app.task(rate_per_key=...)"
)
_CONCURRENCY = "use Worker(app, concurrency=...) or `penstock worker --concurrency N`"
_ACKS = "always so: a job is settled after its attempt has ended"
_LOST = 'always so: a lost worker\'s jobs run again, except with @app.task(delivery="at-most-once")'

_CELERY = {
    "acks_late": _ACKS,
    "acks_on_failure_or_timeout": _ACKS,
    "autoretry_for": "use @app.task(retry_on=...); without it, every error is retried",
    "base": "use app.around_attempt(...), or app.on_startup(...) for what attempts share",
    "bind": _CURRENT,
    "compression": "there is none: store large data elsewhere and pass its key",
    "countdown": _DELAY,
    "default_retry_delay": _WAIT,
    "dont_autoretry_for": "use @app.task(discard_on=...)",
    "eta": _RUN_AT,
    "exchange": _QUEUE,
    "ignore_result": "use @app.task(retention=0), or annotate the function `-> None`",
    "link": _CALLBACK,
    "link_error": _DEAD,
    "max_retries": _ATTEMPTS,
    "pydantic": "not needed: annotate the parameters with the models",
    "rate_limit": _RATE,
    "reject_on_worker_lost": _LOST,
    "retry_backoff": _WAIT,
    "retry_backoff_max": "use @app.task(retry=exponential(cap=...))",
    "retry_jitter": "use @app.task(retry=exponential(jitter=...))",
    "retry_kwargs": "use @app.task(max_attempts=..., retry=...)",
    "routing_key": _QUEUE,
    "serializer": _JSON,
    "soft_time_limit": "use @app.task(timeout=...), which raises AttemptTimeout in the function",
    "store_errors_even_if_ignored": "always so: dead jobs keep their errors; see @app.task(keep_dead=...)",
    "task_id": _ID,
    "time_limit": _TIMEOUT,
    "track_started": "always so: handle.status() is running while the job runs",
}
_RQ = {
    "at_front": "use task.using(priority=100)",
    "depends_on": _AFTER,
    "description": _HEADERS,
    "failure_ttl": "use @app.task(keep_dead=...) or task.using(keep_dead=...)",
    "job_id": _ID,
    "job_timeout": _TIMEOUT,
    "meta": "use task.using(headers=...), or current_job().progress(...) for what an attempt reports",
    "repeat": "there is no number of repeats: use @app.periodic(...) above @app.task",
    "result_ttl": _RETENTION,
    "ttl": _EXPIRES,
}
_ARQ = {
    "_defer_by": _DELAY,
    "_defer_until": _RUN_AT,
    "_expires": _EXPIRES,
    "_job_id": _ID,
    "_queue_name": _QUEUE,
    "job_id": _ID,
    "keep_result": _RETENTION,
    "keep_result_forever": "use @app.task(retention=...) with a long time",
    "max_tries": _ATTEMPTS,
}
_SIDEKIQ = {
    "backtrace": "always so: each failed attempt is kept with its traceback",
    "dead": "use @app.task(keep_dead=0) to keep no dead job",
    "expires_in": _EXPIRES,
    "jid": _ID,
    "perform_at": _RUN_AT,
    "perform_in": _DELAY,
    "retries_exhausted": _DEAD,
    "retry_for": "use task.using(deadline=...), the instant by which all attempts must have ended",
    "retry_in": "use @app.task(retry=...) with a function (attempt, error, job) that returns the delay",
    "tags": _HEADERS,
    "unique_for": 'use @app.task(unique="10m") or task.using(unique="10m")',
    "unique_until": "use @app.task(unique=Unique(states=...))",
    "wait": _DELAY,
    "wait_until": _RUN_AT,
}
_DRAMATIQ = {
    "actor_name": _NAME,
    "max_age": _EXPIRES,
    "max_backoff": "use @app.task(retry=exponential(cap=...))",
    "max_retries": _ATTEMPTS,
    "min_backoff": "use @app.task(retry=exponential(base=...))",
    "queue_name": _QUEUE,
    "result_ttl": _RETENTION,
    "retry_when": "use @app.task(retry_on=...) or @app.task(discard_on=...), by class of error",
    "store_results": _RETENTION,
    "time_limit": _TIMEOUT,
}
_TASKIQ = {
    "labels": _HEADERS,
    "max_retries": _ATTEMPTS,
    "retry_on_error": "always so: every error is retried; @app.task(max_attempts=1) turns that off",
    "schedule": _PERIODIC,
    "task_name": _NAME,
}
_HUEY = {
    "context": _CURRENT,
    "retries": _ATTEMPTS,
    "retry_delay": _WAIT,
}
_PROCRASTINATE = {
    "lock": "use @app.task(concurrency_key=..., ordered=True)",
    "pass_context": _CURRENT,
    "queueing_lock": "use task.using(unique_key=...)",
    "schedule_at": _RUN_AT,
    "schedule_in": _DELAY,
}
_RUN_IN = 'use @app.task(run_in="process"), or "thread", the default of a `def`'
_SLOTS = 'use Worker(app, queues=[Queue("mail", slots=...)]) or `penstock worker --queues mail:slots=N`'
_WEIGHT = 'use Worker(app, queues=[Queue("mail", weight=...)]) or `penstock worker --queues mail:weight=N`'
#: Words of Penstock, and others that several systems share, in the wrong place.
_MISPLACED = {
    "backoff": _WAIT,
    "executor": _RUN_IN,
    "on_complete": _CALLBACK,
    "on_error": "use @app.task(on_failure=...) for each failed attempt, @app.task(on_dead=...) for the last",
    "pool": _RUN_IN,
    "process": _RUN_IN,
    "thread": _RUN_IN,
    "throttle": _RATE,
    "args": "arguments are passed as in a call: task.enqueue(42, lang='de')",
    "kwargs": "arguments are passed as in a call: task.enqueue(42, lang='de')",
    "burst": 'use App(queues={"mail": QueueDefaults(burst=...)}), with a rate',
    "concurrency": _CONCURRENCY,
    "cron": _PERIODIC,
    "crontab": _PERIODIC,
    "deadline": "use task.using(deadline=...)",
    "delay": _DELAY,
    "every": _PERIODIC,
    "id": _ID,
    "interval": _PERIODIC,
    "max_running": (
        'use App(queues={"mail": QueueDefaults(max_running=...)}); per key @app.task(max_running_per_key=...)'
    ),
    "max_size": 'use App(queues={"mail": QueueDefaults(max_size=...)})',
    "on_full": 'use App(queues={"mail": QueueDefaults(on_full=...)})',
    "rate": _RATE,
    "run_at": _RUN_AT,
    "run_in": "use @app.task(run_in=...)",
    "slots": _SLOTS,
    "unique_key": "use task.using(unique_key=...)",
    "url": _URL,
    "weight": _WEIGHT,
}
#: Options of a task that neither an app nor a call has.
_OF_A_TASK = (
    *("aliases", "batch", "burst_per_key", "concurrency_key", "delivery", "discard_on", "fair_by"),
    *("fair_weights", "is_failure", "max_running_per_key", "name", "on_dead", "on_failure", "on_success"),
    *("ordered", "rate_per_key", "retry_on", "upgrade"),
)
_MISPLACED |= {name: f"use @app.task({name}=...)" for name in _OF_A_TASK}

_APPS = {
    "": {
        "broker": _URL,
        "concurrency": _CONCURRENCY,
        "dsn": _URL,
        "headers": _HEADERS,
        "expires": _EXPIRES,
        "keep_dead": "use @app.task(keep_dead=...), or the setting `keep_dead` of penstock.toml",
        "middleware": _MIDDLEWARE,
        "middlewares": _MIDDLEWARE,
        "priority": "use @app.task(priority=...) or task.using(priority=...)",
        "redis_url": _URL,
        "unique": "use @app.task(unique=...) or task.using(unique=...)",
    },
    "Celery": {
        "backend": _KEPT,
        "broker_url": _URL,
        "result_backend": _KEPT,
        "result_expires": _RETENTION,
        "task_acks_late": _ACKS,
        "task_always_eager": "use penstock.testing.inline(app) in tests",
        "task_default_queue": "use App(queue=...)",
        "task_serializer": _JSON,
        "task_time_limit": "use App(timeout=...), the time limit of one attempt",
        "timezone": "use @app.periodic(tz=...)",
        "worker_concurrency": _CONCURRENCY,
    },
    "RQ": {
        "connection": _URL,
        "default_timeout": "use App(timeout=...)",
        "is_async": "use penstock.testing.inline(app) in tests",
    },
    "arq": {
        "cron_jobs": _PERIODIC,
        "ctx": "use app.state, which app.on_startup(...) fills",
        "functions": "use @app.task",
        "job_completion_wait": "use `penstock worker --drain-timeout 30s`",
        "job_timeout": "use App(timeout=...)",
        "keep_result": "use App(retention=...)",
        "max_jobs": _CONCURRENCY,
        "max_tries": "use App(max_attempts=...), which counts the first attempt, too",
        "on_shutdown": "use app.on_shutdown(...)",
        "on_startup": "use app.on_startup(...)",
        "queue_name": "use App(queue=...)",
        "redis_settings": _URL,
    },
}
_CRON = 'use @app.periodic("0 3 * * *"), a cron expression'
_PERIODICS = {
    "": {
        "cron": _CRON,
        "crontab": _CRON,
        "expires": "use @app.task(expires=...)",
        "id": "not needed: a job's id is the entry's name and its scheduled time; see name=",
        "interval": 'use @app.periodic(every="30s")',
        "max_attempts": "use @app.task(max_attempts=...)",
        "priority": "use @app.task(priority=...)",
        "queue": "use @app.task(queue=...)",
        "retention": "use @app.task(retention=...)",
        "retry": "use @app.task(retry=...)",
        "schedule": _CRON,
        "seconds": 'use @app.periodic(every="30s")',
        "timeout": "use @app.task(timeout=...)",
        "timezone": 'use @app.periodic(tz="Europe/Berlin")',
    },
    "Celery": {"run_every": 'use @app.periodic(every="30s")', "sig": "use app.periodic(task=...)"},
    "RQ": {"cron_string": _CRON, "use_local_timezone": 'use @app.periodic(tz="Europe/Berlin")'},
    "arq": {
        "hour": _CRON,
        "minute": _CRON,
        "second": _CRON,
        "weekday": _CRON,
        "unique": "always so: each scheduled time has one job, with any number of workers",
        "run_at_startup": "there is no such option: enqueue the task in app.on_startup(...)",
    },
    "APScheduler": {
        "coalesce": 'use @app.periodic(misfire="once")',
        "max_instances": 'use @app.periodic(overlap="skip")',
        "misfire_grace_time": "use @app.periodic(misfire=...)",
        "trigger": _CRON,
    },
}

_OPTIONS = {
    "Celery": _CELERY,
    "RQ": _RQ,
    "arq": _ARQ,
    "Sidekiq": _SIDEKIQ,
    "dramatiq": _DRAMATIQ,
    "taskiq": _TASKIQ,
    "Huey": _HUEY,
    "Procrastinate": _PROCRASTINATE,
    "": _MISPLACED,
}
_QUEUES = {
    "": {
        "concurrency": "use max_running=...",
        "limit": "use max_running=... for running jobs, max_size=... for queued ones",
        "max_jobs": "use max_running=... for running jobs, max_size=... for queued ones",
        "maxsize": "use max_size=...",
        "rate_limit": 'use rate="5/s"',
        "slots": "use max_running=...; slots are of one worker",
        "ttl": "use keep_finished_for=... or keep_dead_for=...",
        "weight": _WEIGHT,
    },
}

#: A call's options, given as arguments of the task. Other words may well be an argument's name.
_OF_A_CALL = (
    *("batch_key", "deadline", "delay", "expires", "headers", "id", "keep_dead", "max_attempts", "priority"),
    *("queue", "retention", "retry", "run_at", "timeout", "unique", "unique_key"),
)
_PLAIN_WORDS = {"description", "exchange", "labels", "meta", "tags", "wait"}
_ARGUMENTS = {
    system: {word: text for word, text in words.items() if "task.using(" in text and word not in _PLAIN_WORDS}
    for system, words in _OPTIONS.items()
}
_ARGUMENTS[""] = {name: f"if the option is meant, use task.using({name}=...)" for name in _OF_A_CALL}

WORDS = {"option": _OPTIONS, "argument": _ARGUMENTS, "app": _APPS, "periodic": _PERIODICS, "queue": _QUEUES}
