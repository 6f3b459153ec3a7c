"""`testbed rerun`: repeats a run from the configuration in its directory and compares the results."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from testbed.assets.hub import no_downloads
from testbed.channel.access import is_loopback
from testbed.channel.spec import channel_text, parse_channel
from testbed.config import Config, DemoConfig, RunConfig, load
from testbed.errors import BadInput, ConfigError
from testbed.experiments.inputs.datasets import BUNDLED
from testbed.experiments.inputs.marks import check_builtin
from testbed.experiments.results.compare import POINTS, compare
from testbed.experiments.results.directory import read_summary
from testbed.experiments.runs.demo import run_demo
from testbed.experiments.runs.uerun import GIVEN, run_ue
from testbed.experiments.sweep.grid import run_sweep
from testbed.experiments.sweep.points import SCORER, SweepConfig, SweepPoint, load_sweep, points, scorers
from testbed.experiments.sweep.run import POINT, PointRunner
from testbed.files import file_bytes, require_empty, yaml_file
from testbed.ue.dial import addresses

Say = Callable[[str], None]
KINDS: dict[str, tuple[str, type[Config]]] = {
    "sweep": ("grid", SweepConfig),
    "demo": ("prompts", DemoConfig),
    "ue run": ("bs", RunConfig),
}
"""Kinds of runs that can be repeated: a key that only their `config.yaml` has, and its type."""


def rerun(run: Path, out: Path, say: Say, own_scorer: bool = False, as_configured: bool = False) -> dict[str, Any]:
    """Repeat a run into `out` and compare; returns `run`, `rerun`, `kind` and the result of `compare`.

    A virtual demo that measured this machine uses the profile that it wrote then, so that its times repeat.

    Args:
        own_scorer: whether a scorer that is not built in may run, which is code that the directory names.
        as_configured: whether models and data sets of the hub may be downloaded, and a `ue run` may contact other
            machines and read a data set that is not bundled.

    Raises:
        BadInput: not a run directory, a run of another command, a scorer that may not run, a base station or data set
            that may not be used, or a non-empty `out`.
    """
    read_summary(run)
    require_empty(out)
    with no_downloads(not as_configured):
        kind = _run(run, out, say, own_scorer, as_configured)
    return {"run": str(run), "rerun": str(out), "kind": kind, **compare(run, out)}


def _run(run: Path, out: Path, say: Say, own_scorer: bool, as_configured: bool) -> str:
    def check(names: Iterable[str]) -> None:
        for name in () if own_scorer else names:
            check_builtin(name, run, "repeat it with --own-scorer")

    if (point := point_of(run, check)) is not None:
        say(f"repeating one point: {point.config.channel}")
        with contextlib.closing(PointRunner([point])) as runner:
            runner.run(point, out)
        return "point"
    kind, config = config_of(run)
    check(scorers(config) if isinstance(config, SweepConfig) else {getattr(config, SCORER)})
    if isinstance(config, SweepConfig):
        run_sweep(config, out, lambda done, total, text: say(f"{done} of {total} points {text}"))
    elif isinstance(config, DemoConfig):
        run_demo(_with_profile(config, run), out, say)
    elif isinstance(config, RunConfig):
        found = beyond(config)
        if found and not as_configured:
            raise BadInput(
                f"{run} names {' and '.join(found)}, and prompts are sent to base stations: check its "
                "config.yaml, and repeat it with --as-configured"
            )
        say(f"base station {config.bs}, prompts of {config.dataset}")
        run_ue(config, _given(run, config), out)
    return kind


def beyond(config: RunConfig) -> list[str]:
    """Base stations that are not on this machine, and a data set that is not bundled, as words.

    Raises:
        BadInput: an invalid address.
    """
    stations = [one for text in (config.bs, config.local_bs) if text for one in addresses(text)]
    far = [f"the base station {one}" for one in dict.fromkeys(stations) if not is_loopback(one)]
    return far + ([] if config.dataset.startswith(BUNDLED) else [f"the data set {config.dataset}"])


def point_of(run: Path, check: Callable[[Iterable[str]], None] = lambda names: None) -> SweepPoint | None:
    """The sweep point of a run directory; None: it is not part of a sweep. `check` may refuse its scorers."""
    path, sweep = run / POINT, run.resolve().parent.parent / "config.yaml"
    if path.exists():
        try:
            point = msgspec.convert(yaml_file(path), SweepPoint)
        except (OSError, msgspec.DecodeError, BadInput, RecursionError) as exc:
            raise ConfigError(f"{path}: {exc}") from exc
        check([point.config.scorer])
        return point
    if run.resolve().parent.name != POINTS or not sweep.exists():
        return None
    config = load_sweep(sweep)
    check(scorers(config))
    found = [point for point in points(config) if point.key == run.resolve().name]
    if not found:
        raise BadInput(f"{run} is not a point of {sweep.parent} with this version and its heads")
    return found[0]


def config_of(run: Path) -> tuple[str, Config]:
    """Kind and configuration of a run directory.

    Raises:
        BadInput: a run that cannot be repeated with `testbed rerun`.
    """
    path = run / "config.yaml"
    try:
        keys = set(yaml_file(path))
    except (OSError, BadInput, TypeError) as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    if "systems" in keys:
        raise BadInput(f"{run} is a capacity study; repeat it with testbed capacity --config {path} --out DIR")
    if "places" in keys:
        raise BadInput(f"{run} is a field run; repeat it with testbed field run {path} --emulated --out DIR")
    for kind, (key, config) in KINDS.items():
        if key in keys:
            return kind, load(config, path)
    raise BadInput(f"{path} is not from a command that can be repeated; known: {', '.join(KINDS)}")


def _with_profile(config: DemoConfig, run: Path) -> DemoConfig:
    channel, profile = parse_channel(config.channel), run / "profile.yaml"
    if not channel.is_virtual or channel.profile is not None or not profile.exists():
        return config
    measured = msgspec.structs.replace(channel, profile=str(profile))
    return msgspec.structs.replace(config, channel=channel_text(measured))


def _given(run: Path, config: RunConfig) -> list[int] | list[str] | None:
    """Prompt given on the command line of a run, if any."""
    try:
        return list(json.loads(file_bytes(run / GIVEN)))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, RecursionError) as exc:
        raise BadInput(f"cannot read {run / GIVEN}: {exc}") from exc
    decoded = max((row["requests"] for row in read_summary(run)["rows"]), default=0)
    if decoded == 1 and config.limit is None:
        raise BadInput(f"{run} decoded a prompt from its command line, which an older version did not save")
    return None
