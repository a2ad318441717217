"""Types of errors, callbacks and health. Checked by test_typing.py, never run.

A line that ends with `# wrong` must be an error for every checker, and no other line may be one.
"""

from typing import Any

from penstock import App, AttemptError, Handle, Health, Job

app = App("memory://", retry_on=OSError, discard_on=(KeyError, ValueError), is_failure=lambda error: True)
App(retry_on="OSError")  # wrong
App(is_failure=5)  # wrong
App(on_dead=print)  # wrong


def counts(error: BaseException) -> bool:
    return not isinstance(error, ConnectionError)


async def rejoice(job: Job, result: str) -> None: ...


def mourn(job: Job, error: AttemptError) -> None: ...


def migrate(old: dict[str, Any]) -> dict[str, Any]:
    return {"name": old["first"]}


@app.task(
    retry_on=(OSError,),
    discard_on=FileNotFoundError,
    is_failure=counts,
    on_success=rejoice,
    on_failure=mourn,
    on_dead=mourn,
    aliases=("old.greet",),
    upgrade=migrate,
)
async def greet(name: str) -> str:
    return name


def enqueue() -> Handle[str]:
    return greet.enqueue("Ann")


def confused(job: Job, error: int) -> None: ...


def short(job: Job) -> None: ...


@app.task(retry_on=(5,))  # wrong
def one() -> None: ...


@app.task(on_dead=confused)  # wrong
def two() -> None: ...


@app.task(on_success=short)  # wrong
def three() -> None: ...


@app.task(upgrade=counts)  # wrong
def four() -> None: ...


@app.task(aliases=5)  # wrong
def five() -> None: ...


greet.using(retry_on=OSError)  # wrong


@app.handler(queue="legacy", on_dead=mourn, discard_on=ValueError)
async def legacy(job: Any) -> None: ...


@app.on_success
async def all_well(job: Job, result: object) -> None: ...


@app.on_failure(queue="mail")
def failed(job: Job, error: AttemptError) -> None: ...


@app.on_dead(task=greet)
async def dead(job: Job, error: AttemptError) -> None: ...


app.on_dead(mourn)
app.on_dead(short)  # wrong
app.on_failure(confused)  # wrong
app.on_success(queue=5)  # wrong


@app.on_health(every="15s")
def well(health: Health) -> None:
    print(health.running, health.store_reachable)


@app.on_health
async def well_too(health: Health) -> None: ...


app.on_health(mourn)  # wrong
app.on_health(every=[])  # wrong
