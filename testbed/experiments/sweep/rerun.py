"""`testbed rerun`: a run again from the configuration that its directory holds."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from testbed.channel.spec import channel_text, parse_channel
from testbed.config import Config, DemoConfig, RunConfig, load
from testbed.errors import BadInput, ConfigError
from testbed.experiments.results.compare import POINTS, compare
from testbed.experiments.results.directory import read_summary
from testbed.experiments.runs.demo import run_demo
from testbed.experiments.runs.uerun import GIVEN, run_ue
from testbed.experiments.sweep.grid import run_sweep
from testbed.experiments.sweep.points import SweepConfig, SweepPoint, load_sweep, points
from testbed.experiments.sweep.run import Workshop
from testbed.files import require_empty

Say = Callable[[str], None]
POINT = "point.yaml"
KINDS: dict[str, tuple[str, type[Config]]] = {
    "sweep": ("grid", SweepConfig),
    "demo": ("prompts", DemoConfig),
    "ue run": ("bs", RunConfig),
}
"""Runs that can be run again: a key that only their `config.yaml` has, and what it holds."""


def rerun(run: Path, out: Path, say: Say) -> dict[str, Any]:
    """Run again into `out`, and compare; answers `run`, `rerun`, `kind` and what `compare` finds.

    A virtual demo that measured this machine takes the profile that it wrote then, so that its times repeat.

    Raises:
        BadInput: no run directory, one of another command, or an `out` that is in use.
    """
    read_summary(run)
    require_empty(out)
    kind = _run(run, out, say)
    return {"run": str(run), "rerun": str(out), "kind": kind, **compare(run, out)}


def _run(run: Path, out: Path, say: Say) -> str:
    if (point := point_of(run)) is not None:
        say(f"running one point again: {point.config.channel}")
        with contextlib.closing(Workshop([point])) as shop:
            shop.run(point, out)
        return "point"
    kind, config = config_of(run)
    if isinstance(config, SweepConfig):
        run_sweep(config, out, lambda done, total, text: say(f"{done} of {total} points {text}"))
    elif isinstance(config, DemoConfig):
        run_demo(_with_profile(config, run), out, say)
    elif isinstance(config, RunConfig):
        run_ue(config, _given(run, config), out)
    return kind


def point_of(run: Path) -> SweepPoint | None:
    """The point of a sweep that a directory is of; None: it is of none."""
    path, sweep = run / POINT, run.resolve().parent.parent / "config.yaml"
    if path.exists():
        try:
            return msgspec.yaml.decode(path.read_bytes(), type=SweepPoint)
        except (OSError, msgspec.DecodeError) as exc:
            raise ConfigError(f"{path}: {exc}") from exc
    if run.resolve().parent.name != POINTS or not sweep.exists():
        return None
    found = [point for point in points(load_sweep(sweep)) if point.key == run.resolve().name]
    if not found:
        raise BadInput(f"{run} is no point of {sweep.parent} as this version and its heads have it")
    return found[0]


def config_of(run: Path) -> tuple[str, Config]:
    """What a run directory was made by, and its configuration.

    Raises:
        BadInput: another command's, or none.
    """
    path = run / "config.yaml"
    try:
        keys = set(msgspec.yaml.decode(path.read_bytes()))
    except (OSError, msgspec.DecodeError, TypeError) as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    if "systems" in keys:
        raise BadInput(f"{run} is a study of capacity: testbed capacity --config {path} --out DIR runs it again")
    if "places" in keys:
        raise BadInput(f"{run} is a field run: testbed field run {path} --emulated --out DIR runs it again at the desk")
    for kind, (key, config) in KINDS.items():
        if key in keys:
            return kind, load(config, path)
    raise BadInput(f"{path} is of no command that can be run again; known: {', '.join(KINDS)}")


def _with_profile(config: DemoConfig, run: Path) -> DemoConfig:
    channel, profile = parse_channel(config.channel), run / "profile.yaml"
    if not channel.is_virtual or channel.profile is not None or not profile.exists():
        return config
    measured = msgspec.structs.replace(channel, profile=str(profile))
    return msgspec.structs.replace(config, channel=channel_text(measured))


def _given(run: Path, config: RunConfig) -> list[int] | list[str] | None:
    """The prompt of a run that was given one."""
    try:
        return list(json.loads((run / GIVEN).read_text(encoding="utf-8")))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError) as exc:
        raise BadInput(f"{run / GIVEN} cannot be read: {exc}") from exc
    decoded = max((row["requests"] for row in read_summary(run)["rows"]), default=0)
    if decoded == 1 and config.limit is None:
        raise BadInput(f"{run} decoded a prompt of its command line, which an older version did not write down")
    return None
