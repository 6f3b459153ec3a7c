"""Runs in numbers: a grid of virtual or real runs from one YAML file, checked first, resumable point by point.

A point is a run directory of its own under `points/`; one that has its `summary.json` is done. Virtual points share
the passes of one pair of models, whatever their link, window or payload.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from testbed.channel.spec import ChannelSpec, channel_text, parse_channel
from testbed.config import Config, DemoConfig, load, resolved, save
from testbed.errors import BadInput, GateError
from testbed.experiments import results
from testbed.experiments.demo import check_demo, judge_of, judging, labelled, run_demo, virtual_config
from testbed.experiments.execute import Watch
from testbed.experiments.payloads import OWN, PAYLOADS
from testbed.experiments.prepare import Work, predictor_directory, prepare
from testbed.experiments.profile import load_profile
from testbed.experiments.uerun import result_of, write_run
from testbed.experiments.virtual import Models, load_models, run_virtual
from testbed.models.bundle import bundled, head_directory
from testbed.ue.window import FIXED

RATE = "rate_mbps"
"""Grid key that sets both rates."""
PAYLOAD = "payload"
PROTOCOL = "protocol"
"""Grid key for a single method."""
LEVEL, LEVELS = "level", 16
"""Grid key for a threshold as the axis of WISV's Fig. 3 has it, and its end: level = 16 θ."""
RUN_KEYS = (
    "window", "threshold", "max_tokens", "prompts", "seed", "auto_rule", "methods", "judge", "head", "quality_budget",
    "hidden_bits", "window_rule", "predictor",
)  # fmt: skip
NAME = "name"
"""Key of a series' name."""
_SAME = {LEVEL: "threshold", PROTOCOL: "methods"}
"""Keys that say the same thing."""
LINK_KEYS = tuple(name for name in ChannelSpec.__struct_fields__ if name not in ("kind", "via"))

Progress = Callable[[int, int, str], None]
"""Told after every point: points done, points in all, the last one's values."""


class SweepConfig(Config, frozen=True, kw_only=True):
    """A grid of runs.

    Attributes:
        run: what all points share, as `testbed demo` takes it; its channel says of what kind they are.
        grid: values by key; every combination is a point. Keys are those of a run (window, threshold, judge, …), of a
            channel (uplink_mbps, rtt_ms, file, …), `rate_mbps` for both rates, `protocol` for a single method, `level`
            for 16 θ, and `payload` (own, rejection) for virtual points whose profile has sizes.
        series: settings that belong together, each with a `name` and one value for some of these keys; every one is
            combined with the grid's other keys.
    """

    name: str = "sweep"
    run: DemoConfig = DemoConfig(channel="kind=virtual,profile=wisv", methods=("greedy",))
    grid: dict[str, list[Any]] = msgspec.field(default_factory=dict)
    series: list[dict[str, Any]] = msgspec.field(default_factory=list)


class Point(msgspec.Struct, frozen=True):
    """One combination."""

    values: dict[str, Any]
    config: DemoConfig
    channel: ChannelSpec
    payload: str = OWN

    @property
    def key(self) -> str:
        """Name of its directory: what it is, as far as results depend on it."""
        parts = [resolved(self.config), channel_text(self.channel), self.payload]
        if head := judging(self.config)[1]:
            parts.append(head_stamp(head))
        if self.config.window_rule != FIXED:
            parts.append(directory_stamp(predictor_directory(self.config.predictor)))
        text = json.dumps(parts, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def load_sweep(path: Path) -> SweepConfig:
    """Read a sweep.

    Raises:
        ConfigError: unreadable, unknown keys, or values of a wrong type.
    """
    return load(SweepConfig, path)


def points(config: SweepConfig) -> list[Point]:
    """All combinations, in the order of the grid's keys and values, each checked.

    Raises:
        BadInput: an unknown key, an empty list of values, or a point that cannot run; the message names it.
    """
    known = (*RUN_KEYS, *LINK_KEYS, RATE, PAYLOAD, PROTOCOL, LEVEL)
    for key in itertools.chain(config.grid, *config.series):
        if key not in known and not (key == NAME and key not in config.grid):
            raise BadInput(f"unknown grid key {key!r}; known: {', '.join(known)}")
    for key, column in config.grid.items():
        if not column:
            raise BadInput(f"grid key {key!r} has no values")
    found: dict[str, Point] = {}
    for values in _combinations(config):
        point = _named(config, values)
        found.setdefault(json.dumps([values.get(NAME), point.key]), point)
    return list(found.values())


def _named(config: SweepConfig, values: dict[str, Any]) -> Point:
    """A point; where it cannot run, the refusal names it."""
    try:
        return _point(config, values)
    except BadInput as exc:
        raise BadInput(f"point {_text(values)}: {exc}") from exc


def _combinations(config: SweepConfig) -> Iterator[dict[str, Any]]:
    """Values of every point: each series with all combinations of the grid's keys that it does not set itself."""
    for number, one in enumerate(config.series or [{}], 1):
        given = {_SAME.get(key, key) for key in one}
        grid = {key: column for key, column in config.grid.items() if _SAME.get(key, key) not in given}
        name = {NAME: str(one.get(NAME, number))} if config.series else {}
        for combination in itertools.product(*grid.values()):
            yield {**name, **{k: v for k, v in one.items() if k != NAME}, **dict(zip(grid, combination, strict=True))}


def _point(config: SweepConfig, values: dict[str, Any]) -> Point:
    payload = values.get(PAYLOAD, OWN)
    link = {key: value for key, value in values.items() if key in LINK_KEYS}
    if RATE in values:
        link |= {"uplink_mbps": values[RATE], "downlink_mbps": values[RATE]}
    channel = _replaced(parse_channel(config.run.channel), link)
    run = {key: value for key, value in values.items() if key in RUN_KEYS}
    if PROTOCOL in values:
        run["methods"] = [values[PROTOCOL]]
    if LEVEL in values:
        run["threshold"] = _threshold(values[LEVEL])
    demo = _replaced(config.run, {**run, "channel": channel_text(channel)})
    if payload not in PAYLOADS:
        raise BadInput(f"unknown payload {payload!r}; known: {', '.join(PAYLOADS)}")
    if channel.is_virtual and channel.profile is None:
        raise BadInput("virtual points need a profile, such as profile=wisv (or a profile.yaml that a demo measured)")
    if payload != OWN and not (channel.profile and load_profile(channel.profile).sizes):
        raise BadInput(f"payload {payload} needs virtual time and a profile that has sizes")
    check_demo(demo)
    return Point(values, demo, channel, payload)


def _threshold(level: Any) -> float:
    if not (isinstance(level, int | float) and 0 <= level <= LEVELS):
        raise BadInput(f"a level lies in 0..{LEVELS}, not {level!r}")
    return level / LEVELS


def _replaced(struct: Any, values: Mapping[str, Any]) -> Any:
    """A copy with other values, checked as if it had been read."""
    document = {name: getattr(struct, name) for name in struct.__struct_fields__} | dict(values)
    try:
        return msgspec.convert(msgspec.to_builtins(document), type(struct))
    except msgspec.ValidationError as exc:
        cause = exc.__cause__
        raise BadInput(str(cause if isinstance(cause, BadInput) else exc)) from exc


def run_sweep(config: SweepConfig, out: Path, told: Progress) -> dict[str, Any]:
    """Run what is not done yet and write `summary.json` with the rows of all points; returns its document.

    Raises:
        BadInput: a point that cannot run, or a directory of another sweep.
        GateError: a strict point was not lossless; the others ran.
    """
    todo = points(config)
    _claim(config, out)
    lossy = []
    with _runner(config, todo, out) as run:
        for done, point in enumerate(
            sorted(todo, key=lambda p: -p.config.window)
        ):  # the longest drafts hold the others
            directory = out / "points" / point.key
            if not (directory / "summary.json").exists():
                try:
                    run(point, directory)
                except GateError:
                    lossy.append(_text(point.values))
            told(done + 1, len(todo), _text(point.values))
    rows = [row for point in todo for row in _rows(point, out / "points" / point.key)]
    document = results.summary(resolved(config), config.run.seed, results.host(), rows)
    results.write_summary(out, document)
    if lossy:
        raise GateError(f"outputs differ from the target's own at {'; '.join(lossy)}")
    return document


def _claim(config: SweepConfig, out: Path) -> None:
    """Make the directory this sweep's, or see that it is."""
    path = out / "config.yaml"
    if path.exists():
        if load(SweepConfig, path) != config:
            raise BadInput(f"{out} holds another sweep; give another --out, or the same file to resume it")
        return
    if out.exists() and any(out.iterdir()):
        raise BadInput(f"{out} is not empty and holds no sweep; give another --out")
    out.mkdir(parents=True, exist_ok=True)
    save(config, path)


def _rows(point: Point, directory: Path) -> list[dict[str, Any]]:
    more = {key: point.values[key] for key in (NAME, LEVEL) if key in point.values}
    more = {"series" if key == NAME else key: value for key, value in more.items()}
    rows = results.read_summary(directory)["rows"]
    return [{**labelled(row, point.config), **more, PAYLOAD: point.payload, "point": point.key} for row in rows]


def _text(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items()) or "the only one"


def head_stamp(head: str) -> str:
    """What tells one state of a head's files from another."""
    return directory_stamp(head_directory(head))


def directory_stamp(directory: Path) -> str:
    """What tells one state of a directory's files from another."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(directory.iterdir()):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


# ---------------------------------------------------------------- running a point

RunPoint = Callable[[Point, Path], None]


@contextmanager
def _runner(config: SweepConfig, todo: list[Point], out: Path) -> Iterator[RunPoint]:
    """How points are run: real ones as demos, virtual ones over models that are loaded when one needs them."""
    loaded: list[tuple[Models, dict[tuple[str, int], Work]]] = []

    def run(point: Point, directory: Path) -> None:
        if not point.channel.is_virtual:
            run_demo(point.config, directory, lambda _: None)
            return
        if not loaded:
            loaded.append((_load(config, todo), {}))
        models, works = loaded[0]
        _run_virtual(point, directory, models, works)

    try:
        yield run
    finally:
        for models, _ in loaded:
            models.close()


def _load(config: SweepConfig, todo: list[Point]) -> Models:
    """The pair, with room for the longest point."""
    longest = max(todo, key=lambda p: p.config.max_tokens).config
    most = max(point.config.prompts for point in todo)
    run = virtual_config(msgspec.structs.replace(longest, prompts=most))
    hidden = any(judging(point.config)[1] is not None for point in todo)
    bundle = bundled()
    work = prepare(run, (bundle.drafter, bundle.tokenizer), None)
    model = Path(config.run.model) if config.run.model else bundle.require("target")
    return load_models(model, config.run.engine, config.run.dtype, run, work, hidden)


def _run_virtual(point: Point, directory: Path, models: Models, works: dict[tuple[str, int], Work]) -> None:
    assert point.channel.profile is not None
    run = virtual_config(point.config)
    key = (run.dataset, run.limit or 0)
    if key not in works:
        bundle = bundled()
        works[key] = prepare(run, (bundle.drafter, bundle.tokenizer), None)
    work = works[key]
    watch = Watch(lambda *_: None, lambda _: None)
    profile = load_profile(point.channel.profile)
    judge = judge_of(point.config)
    outcomes = run_virtual(run, work, watch, point.channel, profile, models, point.payload, judge)
    result = result_of(run, work, outcomes)
    directory.mkdir(parents=True, exist_ok=True)
    write_run(directory, run, work, result)
    if result.losses:
        raise GateError(result.losses[0])
