"""Hints for words of other systems: each wrong word leads to the right one, and the right one exists."""

from __future__ import annotations

import inspect
import re
from typing import Any, get_args

import click
import pytest

from penstock import (
    App,
    Attempt,
    Handle,
    Queue,
    QueueDefaults,
    Retry,
    Snooze,
    Task,
    Unique,
    Worker,
    exponential,
)
from penstock.app.periodic import PeriodicOptions
from penstock.app.queue import QueueSettings
from penstock.cli.main import cli
from penstock.client.options import CallOptions, DefaultOptions, TaskOptions
from penstock.config import KNOBS, load
from penstock.core.errors import ArgumentError, ConfigError
from penstock.core.job import Job, NewJob
from penstock.core.peer_words import WordPlace, peer_hint, tables
from tests.cases import case, each

PLACES: tuple[WordPlace, ...] = get_args(WordPlace)

#: By place: the right word, as the message has it → the wrong words that lead there.
EXPECTED: dict[str, dict[str, str]] = {
    "option": {
        "task.using(delay=": "_defer_by countdown delay perform_in schedule_in wait",
        "task.using(run_at=": "_defer_until eta perform_at run_at schedule_at wait_until",
        "task.using(expires=": "_expires expires_in max_age ttl",
        "task.using(id=": "_job_id id jid job_id task_id",
        "task.using(queue=": "_queue_name exchange queue_name routing_key",
        "task.using(headers=": "description labels meta tags",
        "task.using(priority=": "at_front",
        "task.using(deadline=": "deadline retry_for",
        "task.using(unique_key=": "queueing_lock unique_key",
        'task.using(unique="10m")': "unique_for",
        "@app.task(unique=Unique(states=": "unique_until",
        "@app.task(timeout=": "job_timeout time_limit soft_time_limit",
        "@app.task(retention=": "ignore_result keep_result keep_result_forever result_ttl store_results",
        "@app.task(keep_dead=": "dead failure_ttl store_errors_even_if_ignored",
        "@app.task(max_attempts=": "max_retries max_tries retries retry_kwargs retry_on_error",
        "@app.task(retry=": "backoff default_retry_delay retry_backoff retry_delay retry_in",
        "exponential(cap=": "max_backoff retry_backoff_max",
        "exponential(base=": "min_backoff",
        "exponential(jitter=": "retry_jitter",
        "@app.task(retry_on=": "autoretry_for retry_on retry_when",
        "@app.task(discard_on=": "discard_on dont_autoretry_for",
        "@app.task(name=": "actor_name name task_name",
        "@app.task(on_success=": "depends_on on_complete link on_success",
        "@app.task(on_failure=...) for": "on_error",
        'run_in="process"': "executor pool process thread",
        "@app.task(on_dead=": "link_error on_dead retries_exhausted",
        "@app.task(concurrency_key=": "concurrency_key lock",
        "@app.periodic(": "cron crontab every interval repeat schedule",
        "current_job()": "bind context pass_context",
        "QueueDefaults(rate=": "rate rate_limit throttle",
        "QueueDefaults(max_running=": "max_running",
        "QueueDefaults(max_size=": "max_size",
        "QueueDefaults(on_full=": "on_full",
        "QueueDefaults(burst=": "burst",
        "Worker(app, concurrency=": "concurrency",
        "slots=N": "slots",
        "weight=N": "weight",
        "always so": "acks_late acks_on_failure_or_timeout backtrace reject_on_worker_lost track_started",
        "not needed": "pydantic serializer",
        "there is none": "compression",
        "app.on_startup(": "base",
        "task.enqueue(42": "args kwargs",
        "App(url=": "url",
        **{
            f"@app.task({name}=": name
            for name in (
                *("aliases", "batch", "burst_per_key", "delivery", "fair_by", "fair_weights", "is_failure"),
                *("max_running_per_key", "on_failure", "ordered", "rate_per_key", "run_in", "upgrade"),
            )
        },
    },
    "argument": {
        "task.using(delay=": "_defer_by countdown delay perform_in schedule_in",
        "task.using(run_at=": "_defer_until eta perform_at run_at schedule_at wait_until",
        "task.using(expires=": "_expires expires expires_in max_age ttl",
        "task.using(id=": "_job_id id jid job_id task_id",
        "task.using(queue=": "_queue_name queue queue_name routing_key",
        "task.using(deadline=": "deadline retry_for",
        "task.using(unique_key=": "queueing_lock unique_key",
        "task.using(unique=": "unique unique_for",
        "task.using(keep_dead=": "failure_ttl keep_dead",
        "task.using(priority=": "at_front priority",
        **{
            f"task.using({name}=": name
            for name in ("batch_key", "headers", "max_attempts", "retention", "retry", "timeout")
        },
    },
    "app": {
        "App(url=": "broker broker_url connection dsn redis_settings redis_url",
        "App(timeout=": "default_timeout job_timeout task_time_limit",
        "App(retention=": "keep_result",
        "App(max_attempts=": "max_tries",
        "App(queue=": "queue_name task_default_queue",
        "@app.task(retention=": "result_expires",
        "@app.task(keep_dead=": "keep_dead",
        "@app.task(expires=": "expires",
        "@app.task(headers=": "headers",
        "@app.task(priority=": "priority",
        "@app.task(unique=": "unique",
        "@app.task": "functions",
        "@app.periodic(": "cron_jobs",
        "@app.periodic(tz=": "timezone",
        "Worker(app, concurrency=": "concurrency max_jobs worker_concurrency",
        "app.around_attempt(": "middleware middlewares",
        "app.on_startup(": "ctx on_startup",
        "app.on_shutdown(": "on_shutdown",
        "penstock worker --drain-timeout": "job_completion_wait",
        "penstock.testing.inline(": "is_async task_always_eager",
        "results are kept in the app's store": "backend result_backend",
        "as JSON": "task_serializer",
        "always so": "task_acks_late",
    },
    "periodic": {
        '@app.periodic("0 3 * * *")': "cron cron_string crontab hour minute schedule second trigger weekday",
        '@app.periodic(every="30s")': "interval run_every seconds",
        "@app.periodic(tz=": "timezone use_local_timezone",
        '@app.periodic(misfire="once")': "coalesce",
        "@app.periodic(misfire=": "misfire_grace_time",
        '@app.periodic(overlap="skip")': "max_instances",
        "app.periodic(task=": "sig",
        "name=": "id",
        "app.on_startup(": "run_at_startup",
        "always so": "unique",
        **{
            f"@app.task({name}=": name
            for name in ("expires", "max_attempts", "priority", "queue", "retention", "retry", "timeout")
        },
    },
    "queue": {
        "max_running=": "concurrency limit max_jobs slots",
        "max_size=": "maxsize",
        'rate="5/s"': "rate_limit",
        "keep_finished_for=": "ttl",
        "weight=N": "weight",
    },
    "command": {
        "penstock worker MODULE:app": "run start",
        "penstock worker --processes N": "multi worker-pool",
        "penstock enqueue": "call",
        "penstock periodic": "beat cron schedule scheduler",
        "penstock queues`": "amqp control queue",
        "penstock queues purge NAME": "empty purge",
        "penstock queues pause NAME": "pause suspend",
        "penstock queues resume NAME": "resume",
        "penstock queues set NAME": "set",
        "penstock queues list": "dash flower info",
        "penstock jobs`": "task",
        "penstock jobs list": "events list",
        "penstock jobs show ID": "result",
        "penstock jobs retry ID": "requeue retry",
        "penstock jobs cancel ID": "cancel",
        "penstock workers list": "inspect server status",
        "penstock doctor": "health report",
        "penstock config": "settings",
    },
    "command option": {
        "--concurrency": "--autoscale --max-async-tasks --slots --threads",
        "--processes": "--workers",
        "--queues": "-Q",
        "--app MODULE:app": "--require -A -r",
        "--url": "--broker",
        "--log-level": "--logging-level --logging_level --loglevel --verbose -l",
        "--log-format": "--custom-log-dict",
        "--drain-timeout": "--shutdown-timeout --worker-shutdown-timeout -t",
        "--max-jobs-per-child": "--max-tasks-per-child",
        "--reload": "--watch",
        "@app.task(timeout=": "--soft-time-limit --time-limit",
        "@app.task(retention=": "--results-ttl",
        "@app.task(run_in=": "--pool -P",
        "penstock periodic": "--beat --with-scheduler -B",
        "penstock doctor": "--check",
        "PENSTOCK_CONFIG": "--config -C",
        "PENSTOCK_...": "--environment",
        "App(include=": "--fs-discover",
        "penstock workers": "--hostname",
        "setting `lease`": "--worker-ttl",
        "not needed": "--prefetch-multiplier --task-events -E",
    },
    "setting": {
        "use url": "broker broker_url database_url redis_settings redis_url",
        "use timeout": "job_timeout task_soft_time_limit task_time_limit",
        "use retention": "keep_result result_expires",
        "use max_attempts": "max_tries",
        "use concurrency": "max_jobs slots worker_concurrency",
        "use processes": "workers",
        "use queue": "queue_name task_default_queue",
        "use lease": "visibility_timeout",
        "use announce": "health_check_interval",
        "use drain_timeout": "job_completion_wait shutdown_timeout",
        "use safety_poll": "poll_delay",
        "use max_jobs_per_child": "worker_max_tasks_per_child",
        "use max_memory_per_child": "worker_max_memory_per_child",
        "penstock queues set NAME --rate": "rate",
        "penstock queues set NAME --max-running": "max_running",
        "app.periodic(": "beat_schedule",
        "App(include=": "imports include",
        "penstock.testing.inline(": "task_always_eager",
        "results are kept in the app's store": "result_backend",
        "always so": "task_acks_late",
    },
    "Task": {
        "use task.enqueue(": "defer defer_async delay enqueue_job kiq perform_async send",
        "use task.using(...).enqueue(": "apply_async configure kicker schedule send_with_options set",
        'task.using(delay="5m").enqueue(': "enqueue_in perform_in",
        "task.using(run_at=...).enqueue(": "enqueue_at perform_at schedule_by_time",
        "app.enqueue_many(": "batch_defer message perform_bulk s si signature subtask",
        "task(...)": "apply call_local perform_inline run",
        "task.function": "fn original_func",
        "app.handle(id)": "AsyncResult",
        "use current_job() inside": "request",
        "current_job().progress(": "update_state",
    },
    "App": {
        "use task.enqueue(": "enqueue enqueue_job",
        "use task.using(...).enqueue(": "configure_task enqueue_call",
        'task.using(delay="5m").enqueue(': "enqueue_in",
        "task.using(run_at=...).enqueue(": "enqueue_at",
        "task.job(": "signature",
        "app.enqueue_raw(": "send_task",
        "app.handle(id)": "AsyncResult fetch_job",
        "app.task": "actor job",
        "app.periodic(": "add_periodic_task cron periodic_task schedule",
        "app.around_attempt(": "add_middleware add_middlewares with_middlewares",
        "app.on_startup(": "on_after_configure on_event",
        "app.close()": "shutdown",
        "penstock worker MODULE:app": "run run_worker run_worker_async start worker worker_main",
        "penstock config": "conf config_from_object",
        "penstock queues": "control",
        "penstock queues purge": "empty",
        "penstock jobs list": "get_jobs queued_jobs",
        "connects at its first enqueue": "startup",
        "results are kept in the app's store": "with_result_backend",
    },
    "Handle": {
        "handle.result(": "get get_result latest_result return_value wait wait_result",
        "handle.status()": (
            "failed get_status is_failed is_finished is_queued is_ready is_started ready refresh state "
            "successful"
        ),
        "handle.job()": "date_done exc_info info meta result_info traceback",
        "handle.follow_progress()": "get_progress progress",
        "handle.cancel()": "abort revoke",
        "handle.retry()": "requeue",
        "handle.id": "jid job_id message_id task_id",
        "penstock jobs delete ID": "delete forget",
    },
    "Attempt": {
        "current_job().id": "jid job_id message_id request",
        "current_job().attempt": "job_try retries",
        "current_job().progress(": "meta save_meta update_state",
        "current_job().cancelled": "is_aborted",
        "current_job().job.enqueued_at": "enqueue_time enqueued_at",
        "current_job().job.run_at": "score",
        "current_job().job.batch": "bid",
        "raise Retry(": "requeue retry",
    },
    "Job": {
        "job.state": "get_status status success",
        "job.ended": "date_done is_finished",
        "job.errors": "error exc_info traceback",
        "job.enqueued_at": "created_at",
        "job.task": "func_name",
        "job.attempt": "job_try",
        "job.progress": "meta",
    },
}
ROWS = [
    (place, word, right)
    for place, rights in EXPECTED.items()
    for right, words in rights.items()
    for word in words.split()
]
HINTS = [
    (place, system, word, text)
    for place in PLACES
    for system, words in tables(place).items()
    for word, text in words.items()
]


def rows(*places: str) -> list[tuple[str, str]]:
    return [(word, right) for place, word, right in ROWS if place in places]


# ── each word is expected, and leads where it should ─────────────────────────────────────────────


@pytest.mark.parametrize("place", PLACES)
def test_each_word_of_a_table_has_one_expected_right_word(place: WordPlace) -> None:
    expected = [word for word, _ in rows(place)]
    assert sorted(expected) == sorted({word for at, _, word, _ in HINTS if at == place})


def test_each_text_for_a_word_names_the_right_word() -> None:
    texts: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for at, system, known, text in HINTS:
        texts.setdefault((at, known), []).append((system, text))
    for place, word, right in ROWS:
        for system, text in texts.get((place, word), ()):
            assert right in text, (place, word, system)


# ── and what the hints name exists ───────────────────────────────────────────────────────────────

_APP_OPTIONS = {*DefaultOptions.__optional_keys__, *inspect.signature(App.__init__).parameters}
_NAMED = {
    "task.using": set(CallOptions.__optional_keys__),
    "@app.task": {*TaskOptions.__optional_keys__, "batch"},
    "@app.periodic": set(PeriodicOptions.__optional_keys__),
    "app.periodic": {*PeriodicOptions.__optional_keys__, "task"},
    "settings": set(QueueSettings.__optional_keys__),
    "App": _APP_OPTIONS,
    **{
        kind.__name__: set(inspect.signature(kind).parameters)
        for kind in (Worker, Queue, QueueDefaults, Retry, Snooze, Unique)
    },
    "exponential": set(inspect.signature(exponential).parameters),
    "handle.result": set(inspect.signature(Handle.result).parameters),
    "handle.aresult": set(inspect.signature(Handle.aresult).parameters),
}
_CALL = re.compile(r"((?:@?\w+\.)?\w+)\(((?:[^()]|\([^()]*\))*)\)")
_ATTRIBUTES = {
    "task": Task,
    "app": App,
    "handle": Handle,
    "current_job()": Attempt,
    "job": Job,
}


def missing_in(text: str) -> list[str]:
    """The options, attributes, commands and settings that a hint names and Penstock lacks."""
    missing = []
    for call, inside in _CALL.findall(text):
        missing += missing_in(inside) if "(" in inside else []
        options = re.findall(r"(?:\A|, )(\w+)=", re.sub(r"\([^()]*\)", "", inside))
        if call in _NAMED:
            missing += [f"{call}({option}=)" for option in options if option not in _NAMED[call]]
        elif options and call not in ("enqueue", "task.enqueue"):
            missing.append(f"{call}: not known to this test")
    for owner, kind in _ATTRIBUTES.items():
        for name in re.findall(rf"(?<![\w.]){re.escape(owner)}\.(\w+)", text):
            there = hasattr(kind, name) or name in ("state", "function")
            missing += [] if there else [f"{owner}.{name}"]
    for name in re.findall(r"current_job\(\)\.job\.(\w+)", text):
        missing += [] if hasattr(Job, name) or hasattr(NewJob, name) else [f"job.{name}"]
    for command in re.findall(r"`(penstock [^`]*)`", text):
        missing += missing_in_command(command)
    for name in re.findall(r"setting `(\w+)`", text):
        missing += [] if name in KNOBS else [f"setting {name}"]
    return missing


def missing_in_command(line: str) -> list[str]:
    command: click.Command = cli
    for word in line.split()[1:]:
        if word.startswith("--"):
            if word not in {opt for param in command.params for opt in param.opts}:
                return [line]
        elif isinstance(command, click.Group):
            found = command.get_command(click.Context(command), word)
            if found is None:
                return [line]
            command = found
    return []


def test_the_check_of_names_finds_what_is_missing() -> None:
    assert missing_in("use task.using(eta=...)") == ["task.using(eta=)"]
    assert missing_in("use task.delay(...), app.foo") == ["task.delay", "app.foo"]
    assert missing_in("use `penstock queues burn NAME`, `penstock worker --hot`") == [
        "penstock queues burn NAME",
        "penstock worker --hot",
    ]


def test_what_a_hint_names_exists() -> None:
    worker = {opt for param in cli.get_command(click.Context(cli), "worker").params for opt in param.opts}  # type: ignore[union-attr]
    for place, system, word, text in HINTS:
        hint = f"{place}, {system}: {word}"
        assert missing_in(text) == [], hint
        if place == "command option":
            assert set(re.findall(r"(?<!\w)--[\w-]+", text)) <= worker, hint
        if place == "setting" and (use := re.search(r"\Ause (\w+)(?=[,; ]|\Z)", text)):
            assert use[1] in KNOBS, hint
        if place == "queue":
            named = set(re.findall(r"\b(\w+)=", text))
            assert named - {"queues", "weight"} <= QueueSettings.__optional_keys__, hint


def test_no_hint_is_for_a_word_that_is_right_in_its_place() -> None:
    right: dict[str, Any] = {
        "app": _APP_OPTIONS,
        "periodic": PeriodicOptions.__optional_keys__,
        "queue": QueueSettings.__optional_keys__,
        "setting": KNOBS,
        "command": cli.list_commands(click.Context(cli)),
        **{kind.__name__: dir(kind) for kind in (Task, App, Handle, Attempt)},
    }
    assert [(place, word) for place, _, word, _ in HINTS if word in right.get(place, ())] == []


def test_each_option_is_known_in_all_other_places() -> None:
    """`@app.task(delay=...)` says that delay= is an option of a call, and so on for each option."""
    silent = [
        name
        for name in sorted({*CallOptions.__optional_keys__, *TaskOptions.__optional_keys__, "batch"})
        for known in (CallOptions.__optional_keys__, {*TaskOptions.__optional_keys__, "batch"})
        if name not in known and name != "batch_key" and not peer_hint("option", name)
    ]
    assert silent == []
    assert {word for at, system, word, _ in HINTS if at == "argument" and not system} == set(
        CallOptions.__optional_keys__
    )


# ── the messages, where a user meets them ────────────────────────────────────────────────────────


def declare(app: App, **options: Any) -> Any:
    @app.task(name="send", **options)
    def send(to: str) -> None: ...

    return send


def test_a_wrong_option_of_a_task_a_call_or_an_app_names_the_right_one() -> None:
    for word, right in rows("option"):
        with case(word):
            _names_the_right_option(word, right)


def _names_the_right_option(word: str, right: str) -> None:
    app = App("memory://")
    if word not in {*TaskOptions.__optional_keys__, "batch"}:
        with pytest.raises(ConfigError) as error:
            declare(app, **{word: 1})
        assert f"the task 'send' has no option {word!r}; " in str(error.value)
        assert right in str(error.value)
    if word not in CallOptions.__optional_keys__:
        with pytest.raises(ConfigError) as error:
            declare(app).using(**{word: 1})
        assert right in str(error.value)
    if word not in _APP_OPTIONS and word not in {known for known, _ in rows("app")}:
        with pytest.raises(ConfigError) as error:
            App("memory://", **{word: 1})
        assert right in str(error.value)


@each("word, right", rows("app"))
def test_a_wrong_option_of_an_app_names_the_right_one(word: str, right: str) -> None:
    with pytest.raises(ConfigError) as error:
        App("memory://", **{word: 1})
    assert right in str(error.value)


@each("word, right", rows("periodic"))
def test_a_wrong_option_of_a_periodic_task_names_the_right_one(word: str, right: str) -> None:
    with pytest.raises(ConfigError) as error:
        App("memory://").periodic("@daily", **{word: 1})
    assert right in str(error.value)


@pytest.mark.parametrize(("word", "right"), rows("queue"))
def test_a_wrong_setting_of_a_queue_names_the_right_one(word: str, right: str) -> None:
    settings: Any = App("memory://").queue("mail").settings
    with pytest.raises(ConfigError) as error:
        settings(**{word: 1})
    assert right in str(error.value)


@pytest.mark.parametrize(("word", "right"), rows("queue"))
def test_a_wrong_limit_of_a_queue_in_code_names_the_right_one(word: str, right: str) -> None:
    with pytest.raises(ConfigError, match=f"QueueDefaults.. has no limit {word!r}") as error:
        QueueDefaults(**{word: 1})
    assert right in str(error.value)


@each("word, right", rows("argument"))
def test_an_option_among_the_arguments_is_sent_to_using(word: str, right: str) -> None:
    with pytest.raises(ArgumentError) as error:
        declare(App("memory://")).enqueue("ann", **{word: 1})
    assert f"unexpected keyword argument {word!r}" in str(error.value)
    assert right in str(error.value)


@pytest.mark.parametrize("word", ["description", "name", "tags", "url"])
def test_a_plain_word_among_the_arguments_is_no_option(word: str) -> None:
    with pytest.raises(ArgumentError) as error:
        declare(App("memory://")).enqueue("ann", **{word: 1})
    assert str(error.value).endswith(f"unexpected keyword argument {word!r}")


def test_the_message_names_the_systems_of_the_word() -> None:
    assert peer_hint("option", "eta") == "; Celery's eta: use task.using(run_at=...), an aware datetime"
    assert peer_hint("option", "max_retries").startswith(
        "; Celery's and dramatiq's and taskiq's max_retries: use"
    )
    assert peer_hint("option", "delay") == '; use task.using(delay="5m")'
    assert peer_hint("option", "tiemout") == ""


@each("place, word, right", [row for row in ROWS if row[0][0].isupper()])
def test_a_wrong_attribute_names_the_right_one(place: str, word: str, right: str) -> None:
    task = declare(App("memory://"))
    handle = task.enqueue("ann")
    job = handle.job()
    assert job is not None
    owners = {"Task": [task, task.using()], "App": [App("memory://")], "Handle": [handle], "Job": [job]}
    for owner in owners.get(place, [Attempt(job)]):
        assert not hasattr(owner, word)
        with pytest.raises(AttributeError) as error:
            getattr(owner, word)
        assert str(error.value).startswith(f"{type(owner).__name__!r} object has no attribute {word!r}; ")
        assert right in str(error.value)


def test_the_words_of_jobs_are_those_of_the_table() -> None:
    """A job has no `__getattr__`: each word is an attribute of its own."""
    words = {name for name, value in vars(Job).items() if type(value).__name__ == "_PeerWord"}
    assert words == {word for table in tables("Job").values() for word in table}


def test_other_attributes_have_pythons_message_and_its_suggestion() -> None:
    task = declare(App("memory://"))
    with pytest.raises(AttributeError) as error:
        task.enqeue  # noqa: B018
    assert str(error.value) == "'SyncTask' object has no attribute 'enqeue'"
    assert (error.value.name, error.value.obj) == ("enqeue", task)


@each("word, right", rows("setting"))
def test_a_wrong_setting_names_the_right_one(word: str, right: str) -> None:
    with pytest.raises(ConfigError) as error:
        load({word: 1}, env={})
    assert right in str(error.value)
    with pytest.raises(ConfigError) as error:
        load(env={f"PENSTOCK_{word.upper()}": "1"})
    assert right in str(error.value)
