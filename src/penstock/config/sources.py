"""Read settings from their sources: options over code over environment over file over default."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from penstock.config.knobs import GIVES_UP_AFTER, KNOBS, Config, Knob
from penstock.core.errors import ConfigError, did_you_mean
from penstock.core.formats import format_ms

#: The file of settings, read from the working directory if it exists.
FILE = Path("penstock.toml")

_PREFIX = "PENSTOCK_"
#: The variable that names another file, which must exist.
_FILE_VARIABLE = "PENSTOCK_CONFIG"
#: Variables that Kubernetes sets in every container next to a Service named "penstock".
_KUBERNETES = re.compile(r"PENSTOCK_(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_\w+)?)\Z")


class Setting(msgspec.Struct, frozen=True):
    """A setting as `penstock config` shows it: as text that can be read back, except for masked secrets."""

    name: str
    value: str
    source: str
    default: str
    variable: str
    kind: str
    why: str


class Loaded(msgspec.Struct, frozen=True):
    """The settings and the source of each, in the order of `Config`."""

    config: Config
    settings: tuple[Setting, ...]

    def source(self, name: str) -> str:
        """Return the source of a setting: "default", "penstock.toml", "PENSTOCK_LEASE", "code", "--lease"."""
        return next(s.source for s in self.settings if s.name == name)


class _Given(msgspec.Struct, frozen=True):
    name: str  # of the setting
    label: str  # the name in its source
    source: str
    value: Any


def load(
    overrides: Mapping[str, Any] | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    file: Path = FILE,
) -> Loaded:
    """Load all settings: `options` (of a command line) over `overrides` (of code) over `env` over `file`.

    All problems are listed in one ConfigError, one line each: unknown names (with a similar known one),
    invalid values, and settings that contradict each other.
    """
    env = os.environ if env is None else env
    problems: list[str] = []
    chosen: dict[str, tuple[Any, str]] = {}
    for given in (
        *_from_file(file, env, problems),
        *_from_env(env, problems),
        *_from_code(overrides or {}, problems),
        *(_Given(name, _option(name), _option(name), value) for name, value in (options or {}).items()),
    ):
        try:
            chosen[given.name] = KNOBS[given.name].kind.read(given.label, given.value), given.source
        except ConfigError as error:
            where = f"{given.source}: " if given.source not in (given.label, "code") else ""
            problems.append(f"{where}{error}")
    if "lease" in chosen and "heartbeat" not in chosen:  # a shorter lease alone must not be an error
        chosen["heartbeat"] = max(50, chosen["lease"][0] // 3), f"a third of {chosen['lease'][1]}"
    config = Config(**{name: value for name, (value, _) in chosen.items()})
    problems += _at_odds(config)
    if problems:
        raise ConfigError("\n".join(problems))
    sources = {name: source for name, (_, source) in chosen.items()}
    return Loaded(config, tuple(_setting(knob, config, sources) for knob in KNOBS.values()))


# ── private ──────────────────────────────────────────────────────────────────────────────────────


def _from_file(file: Path, env: Mapping[str, str], problems: list[str]) -> Iterator[_Given]:
    named = env.get(_FILE_VARIABLE)
    path = Path(named) if named else file
    try:
        table = _toml(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        if named:
            problems.append(f"{_FILE_VARIABLE}={named!r}: there is no such file")
        return
    except (ValueError, RecursionError) as error:  # also a number, or a nesting, beyond what Python reads
        problems.append(f"{path} is not valid TOML: {error}")
        return
    except OSError as error:
        problems.append(f"{path} cannot be read: {error.strerror}")
        return
    for name, value in table.items():
        if name in KNOBS:
            yield _Given(name, name, str(path), value)
        elif isinstance(value, dict):
            problems.append(f"{path}: settings belong at the top level, not in a table [{name}]")
        else:
            problems.append(f"{path}: {name} is not a setting{_setting_hint(name)}")


def _toml(text: str) -> dict[str, Any]:
    import tomllib  # most processes have no file to read

    return tomllib.loads(text)


def _from_env(env: Mapping[str, str], problems: list[str]) -> Iterator[_Given]:
    known = {knob.variable: name for name, knob in KNOBS.items()}
    for variable in sorted(v for v in env if v.startswith(_PREFIX)):
        if variable in known:
            if env[variable]:  # an empty variable counts as not set: compose files leave such variables
                yield _Given(known[variable], variable, variable, env[variable])
        elif variable != _FILE_VARIABLE and not _KUBERNETES.match(variable):
            problems.append(f"{variable} is not a setting{_variable_hint(variable)}")


def _setting_hint(name: str) -> str:
    from penstock.core.peer_words import hint  # only for this message

    return hint("setting", name, KNOBS)


def _variable_hint(variable: str) -> str:
    from penstock.core.peer_words import peer_hint  # only for this message

    # compared without the prefix, which would make all names look similar
    name = variable.removeprefix(_PREFIX)
    near = did_you_mean(name, [name.upper() for name in KNOBS]).replace("'", f"'{_PREFIX}", 1)
    return peer_hint("setting", name.lower()) or near


def _from_code(overrides: Mapping[str, Any], problems: list[str]) -> Iterator[_Given]:
    for name, value in overrides.items():
        if name in KNOBS:
            yield _Given(name, name, "code", value)
        else:
            problems.append(f"{name} is not a setting{_setting_hint(name)}")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _at_odds(config: Config) -> Iterator[str]:
    """Yield a problem for each pair of settings that contradict each other."""
    if config.heartbeat * 2 > config.lease:
        yield (
            f"heartbeat={format_ms(config.heartbeat)} is more than half of lease={format_ms(config.lease)}: "
            "one late heartbeat would lose the jobs; shorten heartbeat or lengthen lease"
        )
    least = 3 * config.thread_grace + GIVES_UP_AFTER
    if config.kill_grace < least:
        yield (
            f"kill_grace={format_ms(config.kill_grace)} is less than 3 × thread_grace + "
            f"{format_ms(GIVES_UP_AFTER)} = {format_ms(least)}: a worker needs this long to give up a "
            "thread that does not react to its timeout, and its supervisor would kill it earlier; "
            f"set kill_grace={format_ms(least)} or more, or shorten thread_grace"
        )


def _setting(knob: Knob, config: Config, sources: Mapping[str, str]) -> Setting:
    return Setting(
        name=knob.name,
        value=knob.kind.show(getattr(config, knob.name)),
        source=sources.get(knob.name, "default"),
        default=_shown_default(knob),
        variable=knob.variable,
        kind=knob.kind.says,
        why=knob.why,
    )


def _shown_default(knob: Knob) -> str:
    if isinstance(knob.default, str):
        return knob.default
    return knob.kind.show(knob.kind.read(knob.name, knob.default))
