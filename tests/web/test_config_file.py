"""lmstfy's file `config.toml`: accepted as it is; what Penstock adds; what is refused or only named."""

from __future__ import annotations

import asyncio
import base64
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.core.errors import ConfigError
from penstock.dialects.lmstfy.settings import Defaults, LmstfySettings, read_config
from penstock.stores.connect import check_url
from tests.servers.single import RedisServer
from tests.web.conftest import Served
from tests.web.programs import SOON, run_to_end, running

pytestmark = pytest.mark.timeout(300)

#: lmstfy's sample, with its comments that are no TOML.
SAMPLE = """
Host = "0.0.0.0"
Port = 7777
AdminHost = "127.0.0.1" # optional, default to localhost
AdminPort = 7778
#LogDir = "/var/log/lmstfy"
LogLevel = "info"
#LogFormat = "text" # Use LogFormat="json" if wants to print the log with json format
EnableAccessLog = true

#TTLSecond = 24 * 60 * 60 // 1 day

[Accounts]
test_user = "change.me"

[AdminRedis]  # redis used to store admin data, eg. tokens
Addr = "localhost:6379"
Password = "foo/bared"

[Pool]
[Pool.default]
Addr = "localhost:6379"
Password = "foobared"
DB = 2
PoolSize = 100
MigrateTo = "migrate"
[Pool.migrate]
Addr = "localhost:6389"

[Pool.mysentinel]
Addr = "localhost:26379,localhost:26380"
MasterName = "mymaster"
Password = "foobared"
SentinelPassword = "foobared1"
"""


def test_lmstfys_sample_is_accepted(home: Path) -> None:
    (home / "config.toml").write_text(SAMPLE)
    config = read_config(home / "config.toml")
    assert config.notes == ()
    assert (config.host, config.port, config.admin_port) == ("0.0.0.0", 7777, 7778)
    assert config.settings.accounts == {"test_user": "change.me"}
    assert config.settings.access_log
    assert config.admin_url == "redis://:foo%2Fbared@localhost:6379"
    assert config.pools["default"].url == "redis://:foobared@localhost:6379/2"
    assert config.pools["default"].migrate_to == "migrate"
    assert config.pools["mysentinel"].url == (
        "redis+sentinel://:foobared@localhost:26379,localhost:26380/mymaster?sentinel_password=foobared1"
    )
    for pool in config.pools.values():
        check_url(pool.url)


def test_defaults_are_taken_and_the_case_of_keys_does_not_matter(home: Path) -> None:
    (home / "config.toml").write_text(
        "ttlsecond = 60\nTriesNum = 3\nTTRSECOND = 30\nTimeoutSecond = 2\nDelaySecond = 1\n"
        '[pool.default]\naddr = "sqlite:///jobs.db"\n'
    )
    config = read_config(home / "config.toml")
    defaults = config.settings.defaults
    assert (defaults.ttl, defaults.tries, defaults.ttr, defaults.timeout, defaults.delay) == (60, 3, 30, 2, 1)
    assert config.pools["default"].url == "sqlite:///jobs.db"


def test_unknown_keys_are_named_in_one_line(home: Path) -> None:
    (home / "config.toml").write_text(
        'Hots = "x"\nPprof = true\nLogDir = "/var/log"\n[Pool.default]\nAddr = "h:1"\nTimeout = 3\n'
    )
    config = read_config(home / "config.toml")
    assert len(config.notes) == 2
    assert "LogDir has no effect" in config.notes[0]
    assert "unknown keys are ignored: Hots" in config.notes[1]
    assert "Pprof, Pool.default.Timeout" in config.notes[1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Port = ", "is not valid TOML"),
        ("Port = 'x'\n[Pool.default]\nAddr='h:1'", "Port='x' is not a whole number from 0 to 65535"),
        ("Port = 70000\n[Pool.default]\nAddr='h:1'", "Port=70000 is not a whole number"),
        ("Port = true\n[Pool.default]\nAddr='h:1'", "Port=True is not a whole number"),
        ("LogLevel = 'loud'\n[Pool.default]\nAddr='h:1'", "LogLevel='loud' is not one of"),
        ("[Pool.other]\nAddr='h:1'", "there is no pool 'default'"),
        ("[Pool.default]\nDB=1", "Pool.default.Addr is missing"),
        ("[Pool.default]\nAddr='h:1'\nMigrateTo='new'", "Pool.default.MigrateTo='new' is no pool"),
        ("[Pool.default]\nAddr='h:1'\nMigrateTo='default'", "ends where it begins"),
        (
            "[Pool.default]\nAddr='h:1'\nMigrateTo='b'\n[Pool.b]\nAddr='h:2'\nMigrateTo='default'",
            "ends where it begins",
        ),
        ("[Pool.default]\nUpstream='http://h:1'", "Pool.default.Upstream needs MigrateTo"),
        ("[Pool.default]\nUpstream='h:1'\nMigrateTo='n'\n[Pool.n]\nAddr='h:1'", "is not the address of"),
        ("[Pool.default]\nAddr='redis://h'\nPassword='x'", "Pool.default.Password: write it into the URL"),
        ("Pool = 3", "Pool=3 is not a table"),
        ("[Accounts]\na = 1\n[Pool.default]\nAddr='h:1'", "Accounts.a=1 is not a text"),
    ],
)
def test_nonsense_is_refused(home: Path, text: str, says: str) -> None:
    (home / "config.toml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_config(home / "config.toml")
    assert says in str(refused.value)


# --- as a program -------------------------------------------------------------------------------


def test_what_lmstfy_accepts_without_an_effect_is_accepted_and_named(home: Path) -> None:
    (home / "config.toml").write_text(
        "LogFormat='logfmt'\nTTLSecond=-1\nTriesNum=0\nTTRSecond=5000000000\n[Pool.default]\nAddr='h:1'\n"
    )
    config = read_config(home / "config.toml")
    assert config.log_format == "text"
    assert [note.partition("config.toml: ")[2] for note in config.notes] == [
        "LogFormat='logfmt' is neither text nor json: it is text",
        "TTLSecond=-1 is not possible: requests that leave it out are refused",
        "TriesNum=0 is not possible: requests that leave it out are refused",
        "TTRSecond=5000000000 is not possible: requests that leave it out are refused",
    ]


async def test_an_impossible_default_refuses_requests_that_leave_it_out(local: Served) -> None:
    local.service.apply(LmstfySettings(Defaults(ttl=-1, tries=0, ttr=5_000_000_000)))
    client = local.client()
    for path, says in (
        ("?tries=1", "invalid ttl"),
        ("?ttl=1", "tries shouldn't be zero"),
        ("/deadletter", "invalid ttl"),
    ):
        refused = await client.put(f"/api/ns/q{path}", b"x")
        assert (refused.status, refused.json) == (400, {"error": says})
    assert (await client.get("/api/ns/q")).json == {"error": "invalid ttr"}
    assert (await client.put("/api/ns/q?ttl=0&tries=1", b"x")).status == 201
    assert (await client.get("/api/ns/q?ttr=1")).data == b"x"


def test_a_chain_of_pools_ends_at_the_last_one(home: Path) -> None:
    (home / "config.toml").write_text(
        "[Pool.default]\nAddr='h:1'\nMigrateTo='b'\n[Pool.b]\nAddr='h:2'\nMigrateTo='c'\n[Pool.c]\nAddr='h:3'\n"
    )
    pools = read_config(home / "config.toml").pools
    assert [pool.migrate_to for pool in pools.values()] == ["c", "c", ""]


@pytest.mark.server
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (("appendonly no",), "nothing is written to disk"),
        (("appendonly no", "save 3600 1"), "there are snapshots only"),
        (("appendonly yes", "maxmemory-policy allkeys-lru"), "maxmemory-policy is allkeys-lru"),
    ],
)
async def test_a_redis_that_may_lose_jobs_is_refused_as_by_lmstfy(
    new_redis: Callable[..., RedisServer], home: Path, settings: tuple[str, ...], says: str
) -> None:
    redis = new_redis(*settings)
    file = home / "config.toml"
    pool = "Port = 0\nAdminPort = 0\n[Pool.default]\nAddr = '{}'\n"
    file.write_text(pool.format(f"127.0.0.1:{redis.port}"))
    code, said = await run_to_end(home, "--config", str(file))
    assert code == 2
    assert f"Pool.default: {'eviction' if 'policy' in says else 'persistence'}: {says}" in said
    file.write_text(pool.format(redis.url))
    async with running(home, "--config", str(file), "--port", "0", with_url=False) as program:
        assert says in program.log.read_text()


POOLS = """
Host = "127.0.0.1"
Port = 0
AdminPort = 0
TriesNum = {tries}
Colour = "red"
[Accounts]
root = "{password}"
[Pool.default]
Addr = "sqlite:///{home}/old.db"
MigrateTo = "new"
[Pool.new]
Addr = "sqlite:///{home}/new.db"
"""


def basic(password: str) -> tuple[str, str]:
    return "Authorization", "Basic " + base64.b64encode(f"root:{password}".encode()).decode()


@pytest.mark.system
async def test_a_file_serves_pools_and_is_reloaded(home: Path) -> None:
    path = home / "lmstfy.toml"
    path.write_text(POOLS.format(tries=3, password="first", home=home))
    async with running(home, "--config", str(path), "--no-tokens", "--port", "0", with_url=False) as program:
        assert "unknown keys are ignored: Colour" in program.log.read_text()
        client, admin = program.client(), program.admin()
        await client.put("/api/ns/q", b"x")
        assert (await client.get("/api/ns/q")).json["remain_tries"] == 2
        waiting = asyncio.create_task(program.client().get("/api/ns/q?timeout=600"))
        assert (await admin.get("/limits", basic("first"))).status == 200
        assert (await admin.request("POST", "/reload")).status == 401
        path.write_text(POOLS.format(tries=9, password="second", home=home).replace("new.db", "newer.db"))
        program.process.send_signal(signal.SIGHUP)
        await program.logged("reloaded")
        assert "Pool changed: this takes effect after a restart" in program.log.read_text()
        assert (await admin.get("/limits", basic("first"))).status == 401
        path.write_text("TriesNum = 'many'")
        refused = await admin.request("POST", "/reload", b"", [basic("second")])
        assert refused.status == 400
        assert "TriesNum='many' is not a whole number" in refused.json["error"]
        await client.put("/api/ns/q", b"y")
        async with asyncio.timeout(SOON):
            assert (await waiting).json["remain_tries"] == 8


async def test_url_and_file_exclude_each_other(home: Path) -> None:
    (home / "c.toml").write_text("[Pool.default]\nAddr='sqlite:///jobs.db'")
    code, said = await run_to_end(home, "--config", "c.toml", "--url", "memory://")
    assert (code, said.count("leave --url out")) == (2, 1)


async def test_a_file_does_not_open_the_admin_listener_to_everyone(home: Path) -> None:
    (home / "c.toml").write_text("AdminHost = '0.0.0.0'\n[Pool.default]\nAddr='sqlite:///jobs.db'")
    code, said = await run_to_end(home, "--config", "c.toml")
    assert (code, said.count("everyone who reaches 0.0.0.0 could make tokens")) == (2, 1)


OPEN = """
AdminHost = "0.0.0.0"
Port = 0
AdminPort = 0
TriesNum = {tries}
{accounts}
[Pool.default]
Addr = "sqlite:///{home}/jobs.db"
"""


async def test_a_reload_does_not_open_the_admin_listener_to_everyone(home: Path) -> None:
    file = home / "config.toml"
    file.write_text(OPEN.format(home=home, tries=1, accounts='[Accounts]\nroot = "first"'))
    options = ("--config", str(file), "--no-tokens", "--allow-anyone")
    async with running(home, *options, with_url=False) as program:
        admin = program.admin()
        file.write_text(OPEN.format(home=home, tries=2, accounts=""))
        refused = await admin.request("POST", "/reload", b"", [basic("first")])
        assert refused.status == 400
        assert "the old accounts stay" in refused.json["error"]
        program.process.send_signal(signal.SIGHUP)
        await program.logged("the old settings stay")
        assert (await admin.request("POST", "/token/ns?description=d")).status == 401
        assert (await admin.request("POST", "/token/ns?description=d", b"", [basic("first")])).status == 201
        assert (await admin.get("/info")).status == 401
