"""A cell with processes: a base station, the radio between its connections, and a process for each decoding UE.

Of several cells, each has a base station; one process has the slots of all, and hands the UEs over.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from testbed.channel.tc.shared import SharedCell
from testbed.errors import EngineError
from testbed.experiments.cell.config import CellConfig
from testbed.experiments.cell.parts.computed import computed_pair
from testbed.experiments.cell.parts.counting import CellRun, SiteRun, direction_slots, grouped
from testbed.experiments.cell.real.kernel import run_kernel, shared_cell
from testbed.experiments.cell.real.radio import lead_s, run_radio
from testbed.experiments.cell.real.reports import RadioReport, UeReport
from testbed.experiments.cell.real.stations import CONTROLLER, METRICS_S, check, serving, stations_of
from testbed.experiments.cell.real.ue import CellUeOrder, answer_together, run_ue
from testbed.experiments.cell.real.work import write_own
from testbed.experiments.cell.recorded import trained_policy
from testbed.experiments.cell.run import Told, untold
from testbed.experiments.deployment import distortions
from testbed.experiments.runs.forked import forking, start, stop_all
from testbed.experiments.runs.processes import WATCH_S, base_station, check_serving, counted_in
from testbed.optim.pass_time import PassOverhead

STOPPING_S = 30.0
OWN = "own.msgpack"
Counters = dict[str, Any]


def run_cell_really(config: CellConfig, told: Told = untold) -> CellRun:
    """Run a cell in real time. Tokens are synthetic, or those of `models`; passes last as long as the profile says.

    Args:
        told: called with the seconds that have passed and those of the run.

    Raises:
        BadInput: too many UEs for processes, an unknown profile, or models or channels that cannot be computed.
        TestbedError: a process died, or a response differs from the target's own.
    """
    members = [group for group in config.ues for _ in range(group.count)]
    decoding = {number: group for number, group in enumerate(members) if group.traffic == "tokens"}
    check(config, decoding)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as held:
        directory = Path(name)
        own = _own_outputs(config, directory)
        place = held.enter_context(shared_cell(config, os.getpid())) if config.carrier == "tc" else None
        host = None if place is None else place.host_address
        servings = [
            (held.enter_context(base_station(serving(config, profile, metrics, host), watch=False))["bind"], metrics)
            for profile, metrics in stations_of(config, directory)
        ]
        with distortions.BeatingThread() as beat:
            radio, reports, counted = _run_processes(config, servings, sorted(decoding), directory, own, told, place)
        stations_s = _still_s([metrics for _, metrics in servings], counted)
        distortions.warn_still(beat.still_s, radio.still_s, stations_s, [report.still_s for report in reports.values()])
    if lossy := sum(report.lossy for report in reports.values()):
        raise EngineError(f"{lossy} responses differ from the target's own output")
    _warn(config, radio, reports.values(), counted)
    tallies = radio.senders | {number: report.tally for number, report in reports.items()}
    for number, work in radio.relayed.items():
        work.put(tallies[number])
    sites = _sites(config, radio, counted)
    return CellRun(
        groups=grouped(config, [tallies[number] for number in range(len(members))]),
        uplink=sum(site.uplink for site in sites) / len(sites),
        downlink=sum(site.downlink for site in sites) / len(sites),
        passes=sum(site.passes for site in sites),
        busy=sum(site.busy for site in sites) / len(sites),
        seconds=config.seconds - config.warmup_s,
        sites=sites,
        between=PassOverhead(**counted[-1][0]["between"]) if len(sites) == 1 else None,
    )


def _own_outputs(config: CellConfig, directory: Path) -> Path | None:
    """File of the target's own responses, which UEs compare with; None: tokens are synthetic."""
    with computed_pair(config) as pair:
        if pair is None:
            return None
        for group in config.ues:
            trained_policy(group, pair.models.drafter.fingerprint)  # raises here, rather than in a process
        write_own(pair.own_outputs(), directory / OWN)
    return directory / OWN


def _warn(
    config: CellConfig, radio: RadioReport, reports: Iterable[UeReport], counted: Sequence[Sequence[Counters]]
) -> None:
    """Log what distorts the times of UEs and of passes, and rounds of other programs."""
    found = list(reports)
    beats_s = [radio.beats_late_s, *(report.beats_late_s for report in found)]
    distortions.warn_busy(beats_s, config.seconds - config.warmup_s)
    distortions.warn_late([report.ready_s for report in found], config.warmup_s)
    distortions.warn_slow(
        "drafters", sum(report.late_s for report in found), sum(report.tally.computed_s for report in found)
    )
    served = sum(after["rounds"] - before["rounds"] for before, after in zip(*counted, strict=True))
    distortions.warn_others(served, sum(report.tally.rounds for report in found), len(found))
    for before, after in zip(*counted, strict=True):
        late_s = after["pace"]["late_s"] - before["pace"]["late_s"]
        distortions.warn_slow("passes", late_s, after["busy_s"] - before["busy_s"])


def _sites(config: CellConfig, radio: RadioReport, counted: Sequence[Sequence[Counters]]) -> list[SiteRun]:
    """Counters of each cell, from those of the base stations after the warm-up and at the end."""
    slots = {up: direction_slots(config, up) for up in (True, False)}
    return [
        SiteRun(
            uplink=min(1.0, up / slots[True]),
            downlink=min(1.0, down / slots[False]),
            passes=after["passes"] - before["passes"],
            busy=min(1.0, (after["busy_s"] - before["busy_s"]) / (after["t_s"] - before["t_s"])),
        )
        for (up, down), before, after in zip(radio.used, *counted, strict=True)
    ]


def _still_s(files: Sequence[Path], counted: Sequence[Sequence[Counters]]) -> list[float]:
    """Longest standstill of each base station after the warm-up."""
    return [
        distortions.metrics_still_s(metrics, METRICS_S, before["t_s"], after["t_s"])
        for metrics, before, after in zip(files, *counted, strict=True)
    ]


def _run_processes(
    config: CellConfig,
    servings: Sequence[tuple[str, Path]],
    decoding: list[int],
    directory: Path,
    own: Path | None,
    told: Told,
    place: SharedCell | None = None,
) -> tuple[RadioReport, dict[int, UeReport], list[list[Counters]]]:
    """Start the radio and the UEs; returns their reports, and the counters of all base stations after the warm-up and
    at the end.

    Args:
        servings: address and metrics file of each base station.
        place: namespace of the UEs, whose bytes the kernel carries; None: they pass relays.
    """
    context = forking(run_ue.__module__)
    members = [group for group in config.ues for _ in range(group.count)]
    targets = [address for address, _ in servings]
    ours, theirs = context.Pipe()
    notices = {number: context.Pipe(duplex=False) for number in decoding if config.cells is not None}
    telling = {number: ends[1] for number, ends in notices.items()}
    controlled = directory / CONTROLLER if config.control.decides else None
    radio = context.Process(target=run_radio, args=(config, targets, theirs, telling, controlled), daemon=True)
    if place is not None:
        counting = (config, place.rates, place.addresses, targets[0], theirs, controlled)
        radio = context.Process(target=run_kernel, args=counting, daemon=True)
    radio.name = "the radio"
    start(radio)
    for line in (theirs, *telling.values()):
        line.close()  # so that its end is noticed
    processes: list[BaseProcess] = [radio]
    try:
        addresses: dict[int, str] = _received(ours, STOPPING_S)
        start_s = time.monotonic() + lead_s(config)
        meeting = _Meeting(context, [number for number in decoding if members[number].together])
        paths = {number: directory / f"{number}.json" for number in decoding}
        for number, path in paths.items():
            there = None if place is None else (place.namespace, place.addresses[number])
            order = CellUeOrder(config, number, addresses[number], start_s, targets, own, there)
            told_by = notices[number][0] if number in notices else None
            args = (order, path, meeting.theirs.get(number), told_by)
            processes.append(context.Process(target=run_ue, name=f"UE {number}", args=args, daemon=True))
            start(processes[-1])
        meeting.begin()
        _send(ours, start_s)
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
    return found, {number: UeReport.read(path) for number, path in paths.items()}, counters


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
    until_s = time.monotonic() + STOPPING_S

    def await_more(size: int) -> None:
        while metrics.stat().st_size <= size:
            check_serving()
            if time.monotonic() > until_s:
                raise EngineError(f"the base station has written no counters for {STOPPING_S:g} s")
            time.sleep(METRICS_S)

    await_more(0)  # on a busy machine it may have written none yet
    found, size = counted_in(metrics), metrics.stat().st_size
    await_more(size)
    return found


def _send(line: Connection, what: Any) -> None:
    """Tell the radio's process something.

    Raises:
        EngineError: it has ended.
    """
    try:
        line.send(what)
    except OSError as exc:
        raise EngineError("the process of the radio ended") from exc


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
