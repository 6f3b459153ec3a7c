"""A cell with processes: a base station, the radio between its connections, and a process for each decoding UE."""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
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
from testbed.experiments.cell.parts.counting import CellRun, direction_slots
from testbed.experiments.cell.real_processes import RadioReport, UeReport, run_radio
from testbed.experiments.cell.real_ue import CellUeOrder, answer_together, run_ue
from testbed.experiments.cell.recorded import recording_of
from testbed.experiments.cell.run import Told, untold
from testbed.experiments.cell.tally import UeTally
from testbed.experiments.inputs.profile import load_profile
from testbed.experiments.runs.forked import start, stop_all
from testbed.experiments.runs.processes import WATCH_S, base_station, check_serving, counted_in
from testbed.ue.windows.registry import WINDOW_RULES

MOST_REAL_UES = 64
LEAD_S, EACH_S = 3.0, 0.3
"""Time until the start, and more for each UE process."""
STOPPING_S = 30.0
METRICS, METRICS_S = "metrics.jsonl", 0.1
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
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with base_station(_serving(config, directory)) as ready:
            radio, reports, (before, after) = _run_processes(config, ready["bind"], sorted(decoding), directory, told)
    if lossy := sum(report.lossy for report in reports.values()):
        raise EngineError(f"{lossy} responses differ from the target's own output")
    for number, (up, down) in radio.carried.items():
        reports[number].bytes_up, reports[number].bytes_down = up, down
        reports[number].air_s, reports[number].band_s = radio.air_s[number], radio.band_s[number]
        reports[number].switches = radio.switches[number]
    everyone = radio.senders | reports
    groups, first = [], 0
    for group in config.ues:
        numbers = range(first, first + group.count)
        groups.append((group, [everyone[number].restore(UeTally(WallClock(), 0, 0)) for number in numbers]))
        first += group.count
    seconds = config.seconds - config.warmup_s
    return CellRun(
        groups=groups,
        uplink=radio.used[0] / direction_slots(config, True),
        downlink=radio.used[1] / direction_slots(config, False),
        passes=after["passes"] - before["passes"],
        busy=min(1.0, (after["busy_s"] - before["busy_s"]) / seconds),
        seconds=seconds,
    )


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
    if config.bs.plan is not None:
        raise BadInput("plans are carried out in virtual time alone; leave out bs.plan or --real")
    for group in decoding.values():
        recording_of(group)
        rule = WINDOW_RULES[group.window_rule]
        if group.samples:
            raise BadInput(f"group {group.name}: {group.protocol} samples, whose outputs --real cannot compare")
        if group.judge_keeps or rule.predictor:
            raise BadInput(f"group {group.name}: --real has neither a judge that keeps tokens nor predictors")
    for profile in {config.bs.profile, *(group.profile for group in decoding.values())}:
        load_profile(profile)  # raises here, rather than in a process
    config.radio.air(radio_ues(config), config.seconds, config.seed)


def _serving(config: CellConfig, directory: Path) -> ServeConfig:
    bs, decides = config.bs, config.control.decides
    hinted = not decides and any(WINDOW_RULES[group.window_rule].hinted for group in config.ues)
    return ServeConfig(
        bind="tcp://127.0.0.1:*", engine="synthetic", pace=bs.profile, scheduler=bs.scheduler, max_batch=bs.max_batch,
        coefficients=bs.profile if SCHEDULERS[bs.scheduler].needs_coefficients or hinted else None, admission=False,
        window_controller=ON if hinted else None, controller=str(directory / CONTROLLER) if decides else None,
        metrics=str(directory / METRICS), metrics_interval_s=METRICS_S,
    )  # fmt: skip


def _run_processes(
    config: CellConfig, target: str, decoding: list[int], directory: Path, told: Told
) -> tuple[RadioReport, dict[int, UeReport], list[Counters]]:
    """Start the radio and the UEs; returns their reports, and the BS's counters after the warm-up and at the end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([run_ue.__module__])
    members = [group for group in config.ues for _ in range(group.count)]
    ours, theirs = context.Pipe()
    controlled = directory / CONTROLLER if config.control.decides else None
    radio = context.Process(target=run_radio, name="the radio", args=(config, target, theirs, controlled), daemon=True)
    start(radio)
    theirs.close()  # so that its end is noticed
    processes: list[BaseProcess] = [radio]
    try:
        addresses: dict[int, str]
        addresses, radio_s = _received(ours, STOPPING_S)
        start_s = time.monotonic() + LEAD_S + EACH_S * len(decoding)
        meeting = _Meeting(context, [number for number in decoding if members[number].together])
        paths = {number: directory / f"{number}.json" for number in decoding}
        for number, path in paths.items():
            order = CellUeOrder(config, number, addresses[number], radio_s, start_s)
            arguments = (order, path, meeting.theirs.get(number))
            processes.append(context.Process(target=run_ue, name=f"UE {number}", args=arguments, daemon=True))
            start(processes[-1])
        meeting.begin()
        ours.send(start_s)
        end_s = start_s + config.seconds + STOPPING_S
        counters: list[Counters] = []
        for until_s in (start_s + config.warmup_s, start_s + config.seconds, end_s):
            _wait(radio, processes[1:], until_s, lambda: told(_passed_s(start_s, config.seconds), config.seconds))
            if until_s < end_s:
                counters.append(_counted(directory / METRICS))
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

    Raises:
        EngineError: it has ended, or sends nothing in time.
    """
    try:
        if line.poll(timeout_s):
            return line.recv()
    except (EOFError, OSError) as exc:
        raise EngineError("the process of the radio ended") from exc
    raise EngineError(f"the process of the radio said nothing for {timeout_s:.0f} s")


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
