"""Base stations of a real cell, and what is refused because processes do not have it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from msgspec.structs import replace

from testbed.bs.scheduling.registry import SCHEDULERS
from testbed.bs.scheduling.window_hints import ON
from testbed.channel.radio.config import ConstantSource
from testbed.channel.radio.sharing import RADIO_SCHEDULERS
from testbed.config import ServeConfig
from testbed.errors import BadInput
from testbed.experiments.cell.config import CellConfig, UeGroup, radio_ues
from testbed.experiments.cell.parts.tasks import demo_of
from testbed.experiments.cell.real.radio import lead_s
from testbed.experiments.cell.recorded import recording_of
from testbed.experiments.cell.several.channels import network_channels
from testbed.experiments.inputs.coefficients import coefficients
from testbed.experiments.inputs.profile import load_profile
from testbed.experiments.inputs.state import NONE
from testbed.experiments.runs.demo import serve_config
from testbed.ue.windows.registry import WINDOW_RULES

MOST_REAL_UES = 64
METRICS_S = 0.1
CONTROLLER = "controller"
KERNEL_SCHEDULERS = ("round-robin", "weights", "joint")
"""Radio schedulers that the kernel's HTB has; the first divides the rate alike."""


def stations_of(config: CellConfig, directory: Path) -> list[tuple[str, Path]]:
    """Profile and metrics file of each base station; without sectors, it has one cell."""
    stations = [None] if config.cells is None else [station.profile for station in config.cells.stations]
    return [(profile or config.bs.profile, directory / f"bs-{n}.jsonl") for n, profile in enumerate(stations)]


def serving(config: CellConfig, profile: str, metrics: Path, host: str | None = None) -> ServeConfig:
    """Configuration of the process of a base station.

    Args:
        profile: its pass times.
        metrics: file of its counters.
        host: its address on a link between namespaces of this machine; None: loopback.
    """
    bs, decides = config.bs, config.control.decides
    hinted = not decides and any(WINDOW_RULES[group.window_rule].hinted for group in config.ues)
    found = ServeConfig(engine="synthetic")
    if config.models is not None:
        found = serve_config(demo_of(config.models, [group for group in config.ues if group.traffic == "tokens"]))
    return replace(
        found, bind=f"tcp://{host or '127.0.0.1'}:*", insecure=host is not None, pace=profile,
        scheduler=bs.scheduler, max_batch=bs.max_batch,
        coefficients=profile if SCHEDULERS[bs.scheduler].needs_coefficients or hinted else None, admission=False,
        window_controller=ON if hinted else None, controller=str(metrics.parent / CONTROLLER) if decides else None,
        metrics=str(metrics), metrics_interval_s=METRICS_S,
    )  # fmt: skip


def check(config: CellConfig, decoding: Mapping[int, UeGroup]) -> None:
    """Refuse what processes do not have, and what they could not read.

    Raises:
        BadInput: see `run.run_cell_really`.
    """
    if len(decoding) > MOST_REAL_UES:
        raise BadInput(f"--real starts a process for each UE: at most {MOST_REAL_UES}, not {len(decoding)}")
    if RADIO_SCHEDULERS[config.radio.scheduler].deadlines:
        raise BadInput(
            f"--real relays bytes without deadlines, which the radio scheduler {config.radio.scheduler} needs"
        )
    if config.bs.plan is not None:
        raise BadInput("plans are for virtual time alone; leave out bs.plan or --real")
    for group in decoding.values():
        recording_of(group)
        rule = WINDOW_RULES[group.window_rule]
        if group.samples:
            raise BadInput(f"group {group.name}: {group.protocol} samples, whose outputs --real cannot compare")
        if group.judge_keeps or (rule.predictor and config.models is None):
            raise BadInput(
                f"group {group.name}: without `models`, --real has neither a judge that keeps tokens nor predictors"
            )
    _check_cells(config, decoding.values())
    if config.carrier == "tc":
        _check_kernel(config)
    for group in decoding.values():
        load_profile(group.profile)  # raises here, rather than in a process
    for profile, _ in stations_of(config, Path()):
        coefficients(profile)  # of passes, which `bs serve` waits for
    if config.cells is None:
        config.radio.air(radio_ues(config), config.seconds, config.seed)
    else:
        network_channels(config, config.seconds, lead_s(config))


def _check_cells(config: CellConfig, decoding: Collection[UeGroup]) -> None:
    """Refuse what several cells have in virtual time alone.

    Raises:
        BadInput: sectors, failures, keys and values that are moved, or channel states.
    """
    if config.cells is None:
        return
    if any(station.azimuths_deg or station.down_s for station in config.cells.stations):
        raise BadInput("--real has base stations without sectors, which do not fail; leave out azimuths_deg and down_s")
    if config.cells.migration.kind != "prefill":
        raise BadInput("keys and values are moved in virtual time alone; leave out cells.migration or --real")
    for group in decoding:
        if group.csi != NONE:
            raise BadInput(f"group {group.name}: with `cells`, --real knows no channel states; take csi none")


def _check_kernel(config: CellConfig) -> None:
    """Refuse what the kernel's HTB does not have.

    Raises:
        BadInput: channels that vary or differ, delays, block errors, other orders, several cells, or groups of bytes.
    """
    radio = config.radio
    constant = isinstance(radio.source, ConstantSource) and isinstance(radio.source.bits_per_s_per_hz, float | int)
    if config.cells is not None or not constant or radio.duplex != "fdd":
        raise BadInput("carrier tc divides constant rates: take one cell, FDD, and a constant source of one efficiency")
    if radio.grant_ms or radio.request_ms or radio.wired_ms or radio.harq.bler:
        raise BadInput("carrier tc adds no delays or losses; set grant_ms, request_ms, wired_ms and harq.bler to 0")
    if radio.scheduler not in KERNEL_SCHEDULERS:
        raise BadInput(f"carrier tc divides rates by {', '.join(KERNEL_SCHEDULERS)}, not by {radio.scheduler}")
    if any(group.traffic != "tokens" for group in config.ues):
        raise BadInput("carrier tc carries the bytes of UEs that decode; leave out groups of bytes")
