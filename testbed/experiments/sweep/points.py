"""Sweep files, and their expansion to points, each validated before anything runs."""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from testbed.assets.fingerprints import directory_stamp, file_stamp
from testbed.channel.spec import ChannelSpec, channel_text, parse_channel
from testbed.config import Config, DemoConfig, load, resolved
from testbed.errors import BadInput
from testbed.experiments.inputs.payloads import OWN, PAYLOADS
from testbed.experiments.inputs.profile import load_profile
from testbed.experiments.inputs.scorers import scorer_file
from testbed.experiments.runs.demo import check_demo, judging
from testbed.experiments.runs.prepare import predictor_directory
from testbed.experiments.sweep.baselines import NAME, expanded
from testbed.files import check_folder_name, yaml_values
from testbed.models.bundle import head_directory
from testbed.options import replaced
from testbed.ue.windows.registry import WINDOW_RULES

RATE = "rate_mbps"
"""Grid key that sets both rates."""
PAYLOAD = "payload"
PROTOCOL = "protocol"
"""Grid key for a single method."""
LEVEL, LEVELS = "level", 16
"""Grid key for a threshold in units of the axis of WISV Fig. 3, and its maximum: level = 16 θ."""
SEED, SCORER = "seed", "scorer"
MOST_POINTS = 1_000_000
"""Largest number of points of a sweep."""
RUN_KEYS = DemoConfig.__struct_fields__
_SHORT = {LEVEL: ("threshold",), PROTOCOL: ("methods",), RATE: ("uplink_mbps", "downlink_mbps")}
"""Keys that set others."""
_SAME = {key: others[0] for key, others in _SHORT.items() if len(others) == 1}
"""Keys with the same meaning."""
LINK_KEYS = tuple(name for name in ChannelSpec.__struct_fields__ if name not in ("kind", "via"))
KNOWN = tuple(dict.fromkeys((*RUN_KEYS, *LINK_KEYS, RATE, PAYLOAD, PROTOCOL, LEVEL)))

Values = dict[str, Any]


class SweepConfig(Config, frozen=True, kw_only=True):
    """A grid of runs.

    Attributes:
        run: settings shared by all points, as for `testbed demo`; its channel determines their kind.
        grid: values by key; every combination is a point. Keys are those of a run (window, threshold, judge, …), of a
            channel (uplink_mbps, rtt_ms, file, …), `rate_mbps` for both rates, `protocol` for a single method, `level`
            for 16 θ, and `payload` (own, rejection) for virtual points whose profile has sizes.
        zip: lists of equal length by key, whose values are paired element by element, and combined with the grid.
        series: named groups of settings, each with a `name` and one value for some of these keys; each is combined with
            the keys of grid and zip that it does not set. `baseline` stands for the settings of a scheme by name.
        exclude: combinations to omit, each given by some of its values; a list matches any of its values.
        include: additional points, each given by its values.
        repeats: number of runs of every point, with seeds seed, seed + 1, …
    """

    name: str = "sweep"
    run: DemoConfig = DemoConfig(channel="kind=virtual,profile=wisv", methods=("greedy",))
    grid: dict[str, list[Any]] = msgspec.field(default_factory=dict)
    zip: dict[str, list[Any]] = msgspec.field(default_factory=dict)
    series: list[Values] = msgspec.field(default_factory=list)
    exclude: list[Values] = msgspec.field(default_factory=list)
    include: list[Values] = msgspec.field(default_factory=list)
    repeats: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_folder_name(self.name)  # of a folder in runs/


class SweepPoint(msgspec.Struct, frozen=True):
    """One point of a sweep."""

    values: Values
    config: DemoConfig
    channel: ChannelSpec
    payload: str = OWN

    @property
    def key(self) -> str:
        """Name of its directory: a digest of everything that its results depend on."""
        parts = [resolved(self.config), channel_text(self.channel), self.payload]
        if head := judging(self.config)[1]:
            parts.append(directory_stamp(head_directory(head)))
        link = [self.channel.file, self.channel.profile, self.channel.shares]
        run = [self.config.dataset, self.config.model, self.config.drafter, scorer_file(self.config.scorer)]
        files = dict.fromkeys(file for name in (*link, *run) if name for file in (name, name.rpartition("+")[2]))
        parts += filter(None, map(file_stamp, files))
        rule = WINDOW_RULES.choose(self.config.window_rule)
        if rule.predictor or rule.hinted:
            parts.append(directory_stamp(predictor_directory(self.config.predictor)))
        text = json.dumps(parts, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def load_sweep(path: Path, pipes: bool = False) -> SweepConfig:
    """Read a sweep file; `pipes`: see `yaml_file`.

    Raises:
        ConfigError: unreadable file, unknown keys, or values of the wrong type.
    """
    return load(SweepConfig, path, pipes)


def with_settings(config: SweepConfig, given: Sequence[str]) -> SweepConfig:
    """A sweep with other settings, each as FIELD=VALUE with the value as in YAML: a field of `run`, `grid.KEY`,
    `zip.KEY`, or a field of the sweep.

    Raises:
        BadInput: an unknown field, or a value that cannot be used.
    """
    document = resolved(config)
    for text in given:
        name, equals, value = text.partition("=")
        part, dot, key = name.partition(".")
        if not equals:
            raise BadInput(f"--set takes FIELD=VALUE, not {text!r}")
        try:
            found = yaml_values(value.encode())
        except BadInput as exc:
            raise BadInput(f"--set {name}: {value!r} is no value ({exc})") from exc
        if dot and part in ("grid", "zip"):
            document[part][key] = found if isinstance(found, list) else [found]
        elif name in RUN_KEYS:
            document["run"][name] = found
        elif name in SweepConfig.__struct_fields__:
            document[name] = found
        else:
            raise _unknown("--set: unknown field", name, (*RUN_KEYS, "repeats", "grid.KEY", "zip.KEY"))
    return replaced(config, document)


def points(config: SweepConfig, most: int = MOST_POINTS, *, runnable: bool = True) -> list[SweepPoint]:
    """All points of a sweep in order of the grid's keys and values.

    Args:
        most: largest number of points.
        runnable: whether to check that each can run, which reads its data set.

    Raises:
        BadInput: an unknown key, lists of different lengths, too many points, or an invalid point, which the message
            names.
    """
    config = msgspec.structs.replace(config, series=[expanded(one) for one in config.series])
    _check_keys(config, most)
    found: dict[str, SweepPoint] = {}
    for values in _repeated(config, [*_kept(config, list(_combinations(config))), *config.include]):
        point = _named(config, values, runnable)
        found.setdefault(json.dumps([values.get(NAME), point.key]), point)
    if not found:
        raise BadInput("exclude leaves no point")
    return list(found.values())


def scorers(config: SweepConfig) -> set[str]:
    """Scorers of all points, which are not validated: that would import those that are code."""
    columns = itertools.chain(config.grid.items(), config.zip.items())
    listed = [value for key, column in columns if key == SCORER for value in column]
    single = [values[SCORER] for values in (*config.series, *config.include) if SCORER in values]
    return {str(name) for name in (config.run.scorer, *listed, *single)}


def values_text(values: Mapping[str, Any]) -> str:
    """Values of a point as text."""
    return ", ".join(f"{key}={value}" for key, value in values.items()) or "the only point"


# ---------------------------------------------------------------- expansion


def _check_keys(config: SweepConfig, most: int) -> None:
    for key in (*config.grid, *config.zip):
        if key not in KNOWN:
            raise _unknown("unknown grid key", key, KNOWN)
    for key in itertools.chain(*config.series, *config.exclude, *config.include):
        if key not in KNOWN and key != NAME:
            raise _unknown("unknown grid key", key, (*KNOWN, NAME))
    for key, column in (*config.grid.items(), *config.zip.items()):
        if not column:
            raise BadInput(f"grid key {key!r} has no values")
    if len({len(column) for column in config.zip.values()}) > 1:
        lengths = ", ".join(f"{key} {len(column)}" for key, column in config.zip.items())
        raise BadInput(f"zipped lists must have equal lengths, not {lengths}")
    given = {_SAME.get(key, key) for key in config.grid}
    if both := [key for key in config.zip if _SAME.get(key, key) in given]:
        raise BadInput(f"{both[0]!r} is in both grid and zip; give it once")
    count = math.prod(map(len, config.grid.values())) * max(1, *map(len, config.zip.values()), len(config.series), 1)
    if (count + len(config.include)) * config.repeats > most:
        raise BadInput(f"a sweep has at most {most} points")
    if config.repeats < 1:
        raise BadInput(f"repeats must be at least 1, not {config.repeats}")
    if config.repeats > 1 and SEED in itertools.chain(config.grid, config.zip, *config.series, *config.include):
        raise BadInput("repeats set the seeds; omit either the key 'seed' or repeats")


def _unknown(what: str, key: str, known: Sequence[str]) -> BadInput:
    near = difflib.get_close_matches(key, known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    return BadInput(f"{what} {key!r}{hint} known: {', '.join(known)}")


def _combinations(config: SweepConfig) -> Iterator[Values]:
    """Values of every point: each series with all combinations of the keys that it does not set."""
    for number, one in enumerate(config.series or [{}], 1):
        given = {_SAME.get(key, key) for key in one}
        grid = _without(config.grid, given)
        zipped = _without(config.zip, given)
        together = [dict(zip(zipped, row, strict=True)) for row in zip(*zipped.values(), strict=True)] or [{}]
        name = {NAME: str(one.get(NAME, number))} if config.series else {}
        for *combination, row in itertools.product(*grid.values(), together):
            yield {
                **name,
                **{key: value for key, value in one.items() if key != NAME},
                **dict(zip(grid, combination, strict=True)),
                **row,
            }


def _without(columns: Mapping[str, list[Any]], given: set[str]) -> dict[str, list[Any]]:
    return {key: column for key, column in columns.items() if _SAME.get(key, key) not in given}


def _kept(config: SweepConfig, combinations: list[Values]) -> list[Values]:
    """Combinations that are not excluded."""
    for entry in config.exclude:
        if not any(_matches(values, entry) for values in combinations):
            raise BadInput(f"exclude {values_text(entry)}: no point matches")
    return [values for values in combinations if not any(_matches(values, entry) for entry in config.exclude)]


def _matches(values: Values, entry: Values) -> bool:
    def one(key: str, wanted: Any) -> bool:
        return key in values and (values[key] == wanted or (isinstance(wanted, list) and values[key] in wanted))

    return all(one(key, wanted) for key, wanted in entry.items())


def _repeated(config: SweepConfig, combinations: Iterable[Values]) -> Iterator[Values]:
    for values in combinations:
        if config.repeats == 1:
            yield values
            continue
        for seed in range(config.run.seed, config.run.seed + config.repeats):
            yield {**values, SEED: seed}


# ---------------------------------------------------------------- a point


def _named(config: SweepConfig, values: Values, runnable: bool) -> SweepPoint:
    """Make a point; an error names it."""
    try:
        return _point(config, values, runnable)
    except BadInput as exc:
        raise BadInput(f"point {values_text(values)}: {exc}") from exc


def _point(config: SweepConfig, values: Values, runnable: bool) -> SweepPoint:
    for key, others in _SHORT.items():
        if key in values and (both := values.keys() & set(others)):
            raise BadInput(f"{key} sets {' and '.join(sorted(both))}: give only one of them")
    payload = values.get(PAYLOAD, OWN)
    link = {key: value for key, value in values.items() if key in LINK_KEYS}
    if RATE in values:
        link |= {"uplink_mbps": values[RATE], "downlink_mbps": values[RATE]}
    channel = replaced(parse_channel(str(values.get("channel", config.run.channel))), link)
    run = {key: value for key, value in values.items() if key in RUN_KEYS}
    if PROTOCOL in values:
        run["methods"] = [values[PROTOCOL]]
    if LEVEL in values:
        run["threshold"] = _threshold(values[LEVEL])
    demo = replaced(config.run, {**run, "channel": channel_text(channel)})
    if payload not in PAYLOADS:
        raise BadInput(f"unknown payload {payload!r}; known: {', '.join(PAYLOADS)}")
    if channel.is_virtual and channel.profile is None:
        raise BadInput("virtual points need a profile, such as profile=wisv (or a profile.yaml measured by a demo)")
    if payload != OWN and not (channel.profile and load_profile(channel.profile).sizes):
        raise BadInput(f"payload {payload} needs virtual time and a profile with sizes")
    if runnable:
        check_demo(demo)
    return SweepPoint(values, demo, channel, payload)


def _threshold(level: Any) -> float:
    if not (isinstance(level, int | float) and 0 <= level <= LEVELS):
        raise BadInput(f"level must lie in 0..{LEVELS}, not {level!r}")
    return level / LEVELS
