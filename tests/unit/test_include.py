"""`App(include=[...])`: modules of tasks that workers, tests and the command line import, without circles."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import App, Worker
from penstock.app.loading import load_app
from penstock.app.user_modules import AppBroken
from penstock.core.errors import ConfigError
from penstock.testing import inline

APP = """
from penstock import App

app = App("memory://", include=["shop.tasks", "shop.mail.tasks"])
"""
TASKS = """
from shop.app import app

@app.task
def greet(name: str) -> str:
    return f"hello {name}"
"""
MAIL = """
from shop.app import app
from shop.tasks import greet

@app.task(queue="mail")
def send(to: str) -> str:
    return greet(to)

@app.handler(queue="raw", max_attempts=3)
def raw(job): ...
"""
FILES = {"__init__": "", "app": APP, "tasks": TASKS, "mail/__init__": "", "mail/tasks": MAIL}


def forget() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "shop"]:
        del sys.modules[name]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Writes the package `shop`, with other files if given, and imports its app."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write(**files: str) -> App:
        for name, text in {**FILES, **files}.items():
            path = tmp_path / "shop" / f"{name.replace('__', '/') if name not in FILES else name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        importlib.invalidate_caches()
        app: App = importlib.import_module("shop.app").app
        return app

    forget()
    yield write
    forget()


def test_importing_the_app_imports_none_of_its_modules(shop: Callable[..., App]) -> None:
    app = shop()
    assert app.tasks == {}
    assert "shop.tasks" not in sys.modules


def test_the_modules_register_their_tasks_once(shop: Callable[..., App]) -> None:
    app = shop()
    app.import_tasks()
    app.import_tasks()
    assert list(app.tasks) == ["shop.tasks.greet", "shop.mail.tasks.send"]


def test_a_loaded_app_has_its_tasks(shop: Callable[..., App]) -> None:
    shop()
    assert sorted(load_app("shop.app:app").queues()) == ["default", "mail", "raw"]


def test_an_app_that_is_loaded_for_its_store_imports_no_tasks(shop: Callable[..., App]) -> None:
    shop(tasks="raise OSError")
    assert load_app("shop.app:app", tasks=False).tasks == {}


def test_a_worker_has_the_tasks_of_the_modules(shop: Callable[..., App]) -> None:
    app = shop()
    worker = Worker(app, burst=True)
    send = importlib.import_module("shop.mail.tasks").send
    handle = send.enqueue("ann")
    asyncio.run(worker.run())
    assert handle.result(timeout=0) == "hello ann"


def test_an_inline_test_has_the_tasks_of_the_modules(shop: Callable[..., App]) -> None:
    app = shop()
    with inline(app) as box:
        app.tasks["shop.tasks.greet"].enqueue("ann")
        assert box.run().completed == 1


def test_a_handle_by_the_name_of_a_task_knows_the_task(shop: Callable[..., App]) -> None:
    app = shop()
    assert app.handle("7", task="shop.mail.tasks.send").queue == "mail"


def test_a_handle_without_a_task_imports_nothing(shop: Callable[..., App]) -> None:
    app = shop()
    app.handle("7", "mail")
    assert app.tasks == {}


def test_a_raw_job_gets_the_options_of_its_handler(shop: Callable[..., App]) -> None:
    assert shop().raw_job("raw", b"").new().max_attempts == 3


def test_taking_a_job_knows_the_tasks(shop: Callable[..., App]) -> None:
    app = shop()
    app.take("mail")
    assert "shop.mail.tasks.send" in app.tasks


def test_a_module_may_use_the_app_while_it_is_imported(shop: Callable[..., App]) -> None:
    use = "\nhandle = app.handle('7', queue='a', task='shop.tasks.other')\napp.take('mail')\n"
    app = shop(tasks=TASKS + use)
    app.import_tasks()
    assert list(app.tasks) == ["shop.tasks.greet", "shop.mail.tasks.send"]


# ── what is wrong is said ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("include", "says"),
    [
        ("shop.tasks", "include='shop.tasks' is not a list of modules: write ['shop.tasks']"),
        (7, "is not a list of modules"),
        ([7], "include=7 is not the full name of a module"),
        ([".tasks"], "include='.tasks' is not the full name of a module (did you mean 'tasks'?)"),
        (["shop/tasks.py"], "is not the full name of a module (did you mean 'shop.tasks'?)"),
        (["shop.tasks:app"], "include='shop.tasks:app' is not the full name of a module"),
        ([""], "include='' is not the full name of a module"),
    ],
)
def test_a_wrong_name_is_refused_when_the_app_is_made(include: Any, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        App("memory://", include=include)
    assert says in str(error.value)


def test_a_module_that_does_not_exist_is_named_with_a_similar_one(shop: Callable[..., App]) -> None:
    app = shop(app=APP.replace("shop.tasks", "shop.taks"))
    with pytest.raises(ConfigError, match=r"no module 'shop.taks' .did you mean 'shop.tasks'"):
        app.import_tasks()
    with pytest.raises(ConfigError, match=r"no module 'shop.taks'"):  # again at the next use
        Worker(app)


def test_a_module_that_raises_is_named_with_the_place(shop: Callable[..., App]) -> None:
    app = shop(tasks=TASKS + "\n1 / 0\n")
    with pytest.raises(AppBroken, match=r"'shop.tasks' cannot be imported: ZeroDivisionError.*tasks\.py:8"):
        app.import_tasks()


def test_a_module_that_imports_what_is_missing_is_broken_and_not_missing(shop: Callable[..., App]) -> None:
    app = shop(tasks="import not_installed\n")
    with pytest.raises(
        AppBroken, match=r"'shop.tasks' cannot be imported: .*No module named 'not_installed'"
    ):
        app.import_tasks()


def test_tasks_of_another_app_object_are_refused(shop: Callable[..., App]) -> None:
    """As if `python shop/app.py` had run: the modules import a second copy of the app."""
    shop()
    script = App("memory://", include=["shop.tasks"])
    with pytest.raises(ConfigError, match=r"the tasks of 'shop.tasks' belong to another App object"):
        script.import_tasks()


def test_a_module_without_tasks_is_no_mistake(shop: Callable[..., App]) -> None:
    app = shop(tasks="", mail__tasks="from shop.app import app\n")
    app.import_tasks()
    assert app.tasks == {}
