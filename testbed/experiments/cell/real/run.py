"""A cell with processes: a base station, the radio between its connections, and a process for each decoding UE.

Of several cells, each has a base station; one process has the slots of all, and hands the UEs over.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec

from testbed.bs.scheduling.registry import SCHEDULERS
from testbed.bs.scheduling.window_hints import ON
from testbed.channel.radio.sharing import RADIO_SCHEDULERS
from testbed.clock import WallClock
from testbed.config import ServeConfig
from testbed.errors import BadInput, EngineError
from testbed.experiments.cell.config import CellConfig, UeGroup, radio_ues
from testbed.experiments.cell.parts.counting import CellRun, SiteRun, direction_slots, grouped
from testbed.experiments.cell.real import standstill
from testbed.experiments.cell.real.radio import RadioReport, UeReport, lead_s, run_radio, tally_of
from testbed.experiments.cell.real.ue import CellUeOrder, answer_together, run_ue
from testbed.experiments.cell.recorded import recording_of
from testbed.experiments.cell.run import Told, untold
from testbed.experiments.cell.several.channels import network_channels
from testbed.experiments.inputs.profile import load_profile
from testbed.experiments.inputs.state import NONE
from testbed.experiments.runs.forked import start, stop_all
from testbed.experiments.runs.processes import WATCH_S, base_station, check_serving, counted_in
from testbed.ue.windows.registry import WINDOW_RULES

MOST_REAL_UES = 64
STOPPING_S = 30.0
METRICS_S = 0.1
CONTROLLER = "controller"
Counters = dict[str, Any]


def run_cell_really(config: CellConfig, told: Told = untold) -> CellRun:
    """Run a cell in real time. Tokens are synthetic; passes last as long as the profile says.

    Args:
        told: called with the seconds that have passed and those of the run.

    Raises:
        BadInput: too many UEs for processes, an unknown profile, or channels that cannot be computed.
        TestbedError: a process died, or a response differs from the target's own.
    """
    members = [group for group in config.ues for _ in range(group.count)]
    decoding = {number: group for number, group in enumerate(members) if group.traffic == "tokens"}
    _check(config, decoding)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stations:
        directory = Path(name)
        servings = [
            (stations.enter_context(base_station(_serving(config, profile, metrics)))["bind"], metrics)
            for profile, metrics in _stations(config, directory)
        ]
        radio, reports, counted = _run_processes(config, servings, sorted(decoding), directory, told)
        standstill.warn(radio.still_s, _still_s([metrics for _, metrics in servings], counted))
    if lossy := sum(report.lossy for report in reports.values()):
        raise EngineError(f"{lossy} responses differ from the target's own output")
    for number, (up, down) in radio.carried.items():
        reports[number].bytes_up, reports[number].bytes_down = up, down
        reports[number].air_s, reports[number].band_s = radio.air_s[number], radio.band_s[number]
        reports[number].switches = radio.switches[number]
    everyone = radio.senders | reports
    tallies = [everyone[number].restore(tally_of(config, WallClock(), 0, 0)) for number in range(len(members))]
    sites = _sites(config, radio, counted)
    return CellRun(
        groups=grouped(config, tallies),
        uplink=sum(site.uplink for site in sites) / len(sites),
        downlink=sum(site.downlink for site in sites) / len(sites),
        passes=sum(site.passes for site in sites),
        busy=sum(site.busy for site in sites) / len(sites),
        seconds=config.seconds - config.warmup_s,
        sites=sites,
    )


def _stations(config: CellConfig, directory: Path) -> list[tuple[str, Path]]:
    """Profile and metrics file of each base station; without sectors, it has one cell."""
    stations = [None] if config.cells is None else [station.profile for station in config.cells.stations]
    return [(profile or config.bs.profile, directory / f"bs-{n}.jsonl") for n, profile in enumerate(stations)]


def _sites(config: CellConfig, radio: RadioReport, counted: Sequence[Sequence[Counters]]) -> list[SiteRun]:
    """Counters of each cell, from those of the base stations after the warm-up and at the end."""
    slots = {up: direction_slots(config, up) for up in (True, False)}
    return [
        SiteRun(
            uplink=up / slots[True],
            downlink=down / slots[False],
            passes=after["passes"] - before["passes"],
            busy=min(1.0, (after["busy_s"] - before["busy_s"]) / (config.seconds - config.warmup_s)),
        )
        for (up, down), before, after in zip(radio.used, *counted, strict=True)
    ]


def _still_s(files: Sequence[Path], counted: Sequence[Sequence[Counters]]) -> list[float]:
    """Longest standstill of each base station after the warm-up."""
    return [
        standstill.metrics_still_s(metrics, METRICS_S, before["t_s"], after["t_s"])
        for metrics, before, after in zip(files, *counted, strict=True)
    ]


def _check(config: CellConfig, decoding: Mapping[int, UeGroup]) -> None:
    """Refuse what processes do not have, and what they could not read.

    Raises:
        BadInput: see `run_cell_really`.
    """
    if len(decoding) > MOST_REAL_UES:
        raise BadInput(f"--real starts a process for each UE: at most {MOST_REAL_UES}, not {len(decoding)}")
    if RADIO_SCHEDULERS[config.radio.scheduler].deadlines:
        raise BadInput(
            f"--real relays bytes without deadlines, which the radio scheduler {config.radio.scheduler} needs"
        )
    if config.models is not None or config.bs.plan is not None:
        raise BadInput("models and plans are for virtual time alone; leave out models, bs.plan or --real")
    for group in decoding.values():
        recording_of(group)
        rule = WINDOW_RULES[group.window_rule]
        if group.samples:
            raise BadInput(f"group {group.name}: {group.protocol} samples, whose outputs --real cannot compare")
        if group.judge_keeps or rule.predictor:
            raise BadInput(f"group {group.name}: --real has neither a judge that keeps tokens nor predictors")
    _check_cells(config, decoding.values())
    profiles = {profile for profile, _ in _stations(config, Path())}
    for profile in profiles | {group.profile for group in decoding.values()}:
        load_profile(profile)  # raises here, rather than in a process
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


def _serving(config: CellConfig, profile: str, metrics: Path) -> ServeConfig:
    bs, decides = config.bs, config.control.decides
    hinted = not decides and any(WINDOW_RULES[group.window_rule].hinted for group in config.ues)
    return ServeConfig(
        bind="tcp://127.0.0.1:*", engine="synthetic", pace=profile, scheduler=bs.scheduler, max_batch=bs.max_batch,
        coefficients=profile if SCHEDULERS[bs.scheduler].needs_coefficients or hinted else None, admission=False,
        window_controller=ON if hinted else None, controller=str(metrics.parent / CONTROLLER) if decides else None,
        metrics=str(metrics), metrics_interval_s=METRICS_S,
    )  # fmt: skip


def _run_processes(
    config: CellConfig, servings: Sequence[tuple[str, Path]], decoding: list[int], directory: Path, told: Told
) -> tuple[RadioReport, dict[int, UeReport], list[list[Counters]]]:
    """Start the radio and the UEs; returns their reports, and the counters of all base stations after the warm-up and
    at the end.

    Args:
        servings: address and metrics file of each base station.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([run_ue.__module__])
    members = [group for group in config.ues for _ in range(group.count)]
    targets = [address for address, _ in servings]
    ours, theirs = context.Pipe()
    notices = {number: context.Pipe(duplex=False) for number in decoding if config.cells is not None}
    telling = {number: ends[1] for number, ends in notices.items()}
    controlled = directory / CONTROLLER if config.control.decides else None
    arguments = (config, targets, theirs, telling, controlled)
    radio = context.Process(target=run_radio, name="the radio", args=arguments, daemon=True)
    start(radio)
    for line in (theirs, *telling.values()):
        line.close()  # so that its end is noticed
    processes: list[BaseProcess] = [radio]
    try:
        addresses: dict[int, str]
        addresses, radio_s = _received(ours, STOPPING_S)
        start_s = time.monotonic() + lead_s(config)
        meeting = _Meeting(context, [number for number in decoding if members[number].together])
        paths = {number: directory / f"{number}.json" for number in decoding}
        for number, path in paths.items():
            order = CellUeOrder(config, number, addresses[number], radio_s, start_s, targets)
            told_by = notices[number][0] if number in notices else None
            args = (order, path, meeting.theirs.get(number), told_by)
            processes.append(context.Process(target=run_ue, name=f"UE {number}", args=args, daemon=True))
            start(processes[-1])
        meeting.begin()
        ours.send(start_s)
        end_s = start_s + config.seconds + STOPPING_S
        counters: list[list[Counters]] = []
        for until_s in (start_s + config.warmup_s, start_s + config.seconds, end_s):
            _wait(radio, processes[1:], until_s, lambda: told(_passed_s(start_s, config.seconds), config.seconds))
            if until_s < end_s:
                counters.append([_counted(metrics) for _, metrics in servings])
        found: RadioReport = _received(ours, max(0.0, end_s - time.monotonic()))
    finally:
        stop_all(processes)
    if missing := [number for number, path in paths.items() if not path.exists()]:
        raise EngineError(f"{len(missing)} of {len(paths)} UE processes ended without a report")
    reports = {n: msgspec.json.decode(path.read_bytes(), type=UeReport) for n, path in paths.items()}
    return found, reports, counters


class _Meeting:
    """Connections of UEs that wait for each other."""

    def __init__(self, context: BaseContext, numbers: Sequence[int]) -> None:
        pipes = {number: context.Pipe() for number in numbers}
        self._ours = [ours for ours, _ in pipes.values()]
        self.theirs = {number: theirs for number, (_, theirs) in pipes.items()}

    def begin(self) -> None:
        """Answer, once the UEs have their ends."""
        for line in self.theirs.values():
            line.close()  # so that the end of a UE is noticed
        if self._ours:
            threading.Thread(target=answer_together, args=(self._ours,), daemon=True).start()


def _counted(metrics: Path) -> Counters:
    """The BS's counters, after a check that it still writes some.

    Raises:
        TestbedError: it has ended, or writes none for `STOPPING_S`.
    """
    found, size = counted_in(metrics), metrics.stat().st_size
    until_s = time.monotonic() + STOPPING_S
    while metrics.stat().st_size == size:
        check_serving()
        if time.monotonic() > until_s:
            raise EngineError(f"the base station has written no counters for {STOPPING_S:g} s")
        time.sleep(METRICS_S)
    return found


def _received(line: Connection, timeout_s: float) -> Any:
    """What the radio's process sends next.

    Args:
        timeout_s: what is left of `STOPPING_S`, which it has to answer.

    Raises:
        EngineError: it has ended, or sends nothing in time.
    """
    try:
        if line.poll(timeout_s):
            return line.recv()
    except (EOFError, OSError) as exc:
        raise EngineError("the process of the radio ended") from exc
    raise EngineError(f"the process of the radio said nothing for {STOPPING_S:g} s")


def _passed_s(start_s: float, most_s: float) -> float:
    """Time since the start, within the run's."""
    return min(most_s, max(0.0, time.monotonic() - start_s))


def _wait(
    radio: BaseProcess, ues: Sequence[BaseProcess], until_s: float, tick: Callable[[], object] = lambda: None
) -> None:
    """Wait until a time on the monotonic clock, or until all UEs' processes have ended; `tick` is called meanwhile.

    Raises:
        TestbedError: the base station died, or another process failed.
    """
    while (left_s := until_s - time.monotonic()) > 0:
        for process in (radio, *ues):
            if process.exitcode:
                raise EngineError(f"the process of {process.name} ended with exit code {process.exitcode}")
        if not any(ue.is_alive() for ue in ues):
            return
        wait([process.sentinel for process in (radio, *ues) if process.is_alive()], min(left_s, WATCH_S))
        check_serving()
        tick()
