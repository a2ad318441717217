"""Wrong input on the command line gives a one-line error, and nothing is stored or changed."""

from __future__ import annotations

import shlex

import pytest

from tests.cli.conftest import IN_A_FILE

pytestmark = IN_A_FILE

GREET = "tasks:app tasks.greet '[\"x\"]'"

MISTYPED = [
    (2, "enqueue tasks:app tasks.greet x", "neither a JSON object nor an array"),
    (2, "enqueue tasks:app tasks.greet 5", "neither a JSON object nor an array"),
    (2, """enqueue tasks:app tasks.greet '{"nam": 1}'""", "unknown argument(s) 'nam'"),
    (3, "enqueue tasks:app tasks.gret '[]'", "no task 'tasks.gret' (did you mean 'tasks.greet'?)"),
    (2, f"enqueue {GREET} --delay soon", "delay='soon' is not a duration"),
    (2, f"enqueue {GREET} --priority 1000", "is not a whole number from -100 to 100"),
    (2, f"enqueue {GREET} --header foo", "--header 'foo' has no '=': write NAME=VALUE"),
    (2, f"enqueue {GREET} --id 'a b'", "cannot be a job's id"),
    (2, f"enqueue {GREET} --queue a/b", "cannot be a queue's name"),
    (2, "enqueue nope:app x", "there is no module 'nope'"),
    (2, "enqueue tasks:nope x", "has no 'nope' (did you mean tasks:app?)"),
    (2, f"periodic add x '* * * *' {GREET}", "is not a cron expression: wrong number of fields"),
    (2, f"periodic add x @dayly {GREET}", "is not a schedule (did you mean '@daily'?)"),
    (2, f"periodic add 'a b' @daily {GREET}", "cannot be the name of a periodic entry"),
    (3, "periodic add x @daily tasks:app tasks.gret '[]'", "(did you mean 'tasks.greet'?)"),
    (2, "periodic add x @daily tasks:app tasks.greet '[1]'", "Expected `str`, got `int`"),
    (2, f"periodic add x @daily {GREET} --tz Mars/X", "--tz='Mars/X' is not a time zone"),
    (2, f"periodic add x @daily {GREET} --misfire never", "is not one of skip, once, all"),
    (2, f"periodic add x @daily {GREET} --jitter -1", "jitter='-1' is negative"),
    (3, "periodic next nope", "there is no periodic entry 'nope'"),
    (
        2,
        "worker tasks:app --queues a:colour=1",
        "'colour' is not an option: the options are weight and slots",
    ),
    (2, "worker tasks:app --concurrency x", "--concurrency='x' is not a whole number"),
    (2, "worker tasks:app --processes -1", "--processes='-1' is out of range: use 1 to"),
    (2, "worker tasks:app --drain-timeout x", "--drain-timeout='x' is not a duration"),
    (2, "jobs list --state ded", "'ded' is not one of"),
    (2, "jobs list --limit 0", "0 is not in the range"),
    (2, "jobs list --after xyz", "after='xyz' is not a cursor"),
    (2, "jobs show x/y/z", "queue='x/y' cannot be a queue's name"),
    (2, "jobs retry", "no jobs given: name jobs by id, or select them with --all"),
    (2, "jobs retry a --all", "ids and --all exclude each other"),
    (2, "jobs retry --queue mail", "filters, --limit, --pace, --dry-run and --detach need --all"),
    (2, "enqueue tasks:app", "no task: name one after the app"),
    (2, f"enqueue {GREET} more", "unexpected argument 'more': put the JSON into quotes"),
    (2, f"enqueue {GREET} --delay 1s --run-at 2099-01-01T00:00:00Z", "--delay and --run-at both set when"),
    (2, f"enqueue {GREET} --unique-for soon", "--unique-for='soon' is not a duration"),
    (2, "queues pause 'a b' --create", "queue='a b' cannot be a queue's name"),
    (2, "queues close {x} --create", "queue='{x}' cannot be a queue's name"),
    (3, "queues pause nope", "there is no queue 'nope'; --create creates it"),
    (3, "queues purge nope --yes", "there is no queue 'nope'"),
    (2, "stats --days -3", "-3 is not in the range"),
    (2, "stats --url foo://x", "no store has the scheme 'foo'"),
    (2, "queues list --namespace 'a b'", "namespace='a b' cannot be a namespace"),
    (2, "completion tcsh", "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
]


@pytest.mark.parametrize(("code", "words", "says"), MISTYPED, ids=[words for _, words, _ in MISTYPED])
def test_a_mistyped_command_is_one_line_and_changes_nothing(penstock, store, tasks, code, words, says):
    of_an_app = "tasks:" in words or "nope:" in words
    assert says in penstock.says(code, *shlex.split(words), url=not of_an_app)
    assert store.sync.queues() == []
