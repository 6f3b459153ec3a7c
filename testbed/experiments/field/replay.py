"""Repeats a field run in virtual time, over the recorded link of each place and over the modelled link of its distance.

Models and tokens are the same, except where a judge depends on the channel state; device times come from
`field_profile`, fitted to other repeats and places.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from testbed.bs.engines.registry import ENGINES
from testbed.bs.engines.target import find
from testbed.bs.judging.base import Judge
from testbed.bs.judging.registry import JUDGES, make_judge
from testbed.channel.csi import Csi
from testbed.channel.spec import ChannelSpec
from testbed.channel.trace import COLUMNS, Trace, read_trace, write_trace
from testbed.errors import BadInput, TestbedError
from testbed.experiments.field.devices.arrived import STEP_S
from testbed.experiments.field.devices.base import LINK_TRACE
from testbed.experiments.field.link import constant, rolled, write_model
from testbed.experiments.field.log import FieldLog
from testbed.experiments.field.order import FieldCell
from testbed.experiments.field.plan import run_config
from testbed.experiments.field.profile import by_rounds, by_traces, field_profile
from testbed.experiments.field.samples import REPLAY, VIRTUAL, done_cells, measured_csi, rounds_of, samples
from testbed.experiments.field.stage import MODEL, target_of
from testbed.experiments.inputs.formats import Example
from testbed.experiments.inputs.profile import Profile, load_profile
from testbed.experiments.links.recording import record
from testbed.experiments.results import directory as results
from testbed.experiments.runs.execute import Watch
from testbed.experiments.runs.prepare import Workload, prepare
from testbed.experiments.runs.virtual import Models, load_models, run_virtual
from testbed.models.bundle import head_directory

Rows = list[dict[str, Any]]
Progress = Callable[[int, int], None]


def record_links(log: FieldLog) -> dict[str, Trace]:
    """Write the recorded link of every cell, and of every place as a concatenation of its cells; returns the latter.

    A cell whose rounds have no channel state (such as `target-only`) gets the link measured on arrival.
    """
    found: dict[str, list[Trace]] = {}
    for cell in done_cells(log):
        if rounds_of(log, cell)[0]["csi_uplink_mbps"] is None:
            trace, header = constant(measured_csi(log, cell.place)), ["measured on arrival"]
        else:
            recording = record(log.cell(cell), STEP_S)
            trace, header = recording.trace, recording.header
        write_trace(log.cell(cell) / LINK_TRACE, trace, header)
        found.setdefault(cell.place, []).append(trace)
    joined = {place: _joined(traces) for place, traces in found.items()}
    for place, trace in joined.items():
        header = [f"recorded at {place}, {len(found[place])} runs, concatenated without the gaps between them"]
        write_trace(log.place(place) / LINK_TRACE, trace, header)
    return joined


def _joined(traces: Sequence[Trace]) -> Trace:
    starts = np.cumsum([0.0, *(trace.duration_s for trace in traces[:-1])])
    columns = {name: np.concatenate([trace.columns[name] for trace in traces]) for name in COLUMNS[1:]}
    times = [trace.t_s + start for trace, start in zip(traces, starts, strict=True)]
    return Trace(t_s=np.concatenate(times), **columns)


def _with_csi(rounds: Rows, csi: Csi) -> Rows:
    """The rounds, with `csi` where they have no channel state."""
    known = {f"csi_{name}": getattr(csi, name) for name in csi.__struct_fields__}
    return [row if row["csi_uplink_mbps"] is not None else {**row, **known} for row in rounds]


class VirtualPair:
    """A pair loaded in this process for all virtual runs of a field run.

    Raises:
        BadInput: an unusable model or head, or the synthetic engine, which virtual runs cannot reproduce.
    """

    def __init__(self, log: FieldLog, emulated: bool) -> None:
        plan = log.plan
        if not ENGINES.choose(plan.engine).needs_model:
            raise BadInput(f"the {plan.engine} engine cannot be replayed in virtual time; set another one")
        self._log, self._emulated = log, emulated
        config = run_config(plan, plan.baseline, "tcp://127.0.0.1:5555", "none", plan.dataset)
        self._config = msgspec.structs.replace(config, limit=plan.repeats * plan.prompts, warmup=0, keys=None)
        self._padded = load_profile(plan.pad) if plan.pad else None
        self._work = prepare(self._config)
        target = target_of(plan)
        self._head = str(head_directory(plan.head)) if JUDGES.choose(plan.judge).needs_head else None
        self._target = find(str(target))
        self._judge()  # fail early if it cannot be made
        hidden = not JUDGES[plan.judge].lossless
        self._models: Models = load_models(target, plan.engine, plan.dtype, self._config, self._work, hidden)
        self._cells = done_cells(log)
        self._rounds = {cell: self._known(cell) for cell in self._cells}
        self._traces = {place: self._model(place) for place in dict.fromkeys(cell.place for cell in self._cells)}

    @property
    def examples(self) -> list[Example]:
        """The prompts, in order of requests."""
        return [prompt.example for prompt in self._work.prompts]

    def close(self) -> None:
        """Release the models."""
        self._models.close()

    def run(self, progress: Progress, failed: Callable[[str], None]) -> Rows:
        """Run every cell over its recorded and its modelled link; returns rows of `samples`.

        Args:
            failed: called with a line for a cell that cannot be repeated.
        """
        found: Rows = []
        with tempfile.TemporaryDirectory(prefix="testbed-") as scratch:
            modelled = Path(scratch) / MODEL
            for done, cell in enumerate(self._cells):
                try:
                    replayed = self._run(cell, REPLAY, self._log.cell(cell) / LINK_TRACE)
                    write_trace(modelled, rolled(self._traces[cell.place], self._start_s(cell)))
                    found += [*replayed, *self._run(cell, VIRTUAL, modelled)]
                except TestbedError as exc:
                    failed(f"no virtual runs of {cell.key}: {exc}")
                progress(done + 1, len(self._cells))
        return found

    def _run(self, cell: FieldCell, way: str, link: Path) -> Rows:
        plan = self._log.plan
        method = next(m for m in plan.methods if m.name == cell.method)
        config = run_config(plan, cell.method, self._config.bs, "none", plan.dataset)
        config = msgspec.structs.replace(config, warmup=0, keys=None)
        channel = ChannelSpec(kind="trace", file=str(link), via="virtual")
        first = cell.repeat * plan.prompts
        mine = self._work.prompts[first : first + plan.prompts]
        work = Workload(mine, [], self._work.prompter, self._work.drafter)
        quiet = Watch(lambda *_: None, lambda _: None)
        profile = self._profile(cell, way, method.hidden_bits)
        outcomes = run_virtual(config, work, quiet, channel, profile, self._models, judge=self._judge())
        assert work.prompter is not None
        texts = {(o.method, o.request): work.prompter.text(o.record.token_ids) for o in outcomes}
        return samples(
            plan, cell, way, results.request_rows(outcomes, texts), results.round_rows(outcomes), self.examples
        )

    def _profile(self, cell: FieldCell, way: str, hidden_bits: int) -> Profile:
        here = self._rounds_of(lambda one: one.method == cell.method and one.place == cell.place and one != cell)
        elsewhere = self._rounds_of(lambda one: one.method == cell.method and one.place != cell.place)
        if not (here or elsewhere):
            raise BadInput(
                f"a prediction of {cell.method} at {cell.place} needs rounds of another repeat or place; add one"
            )
        truth = way == VIRTUAL and self._emulated
        expected = by_traces(self._traces) if truth else by_rounds
        return field_profile(here or elsewhere, elsewhere or here, expected, self._padded, hidden_bits)

    def _known(self, cell: FieldCell) -> Rows:
        """Rounds of a cell, with the starting time of its emulated link."""
        times = self._log.times_of(cell)
        rounds = _with_csi(rounds_of(self._log, cell), measured_csi(self._log, cell.place))
        return [{**row, "origin_s": times["origin_s"] if times else None} for row in rounds]

    def _rounds_of(self, wanted: Callable[[FieldCell], bool]) -> Rows:
        return [row for cell, rows in self._rounds.items() if wanted(cell) for row in rows]

    def _model(self, name: str) -> Trace:
        """The modelled link of a place; in an emulated run, the one its relay followed."""
        path = self._log.place(name) / MODEL
        if path.exists():
            return read_trace(path)
        plan = self._log.plan
        index, place = next((i, place) for i, place in enumerate(plan.places) if place.name == name)
        return write_model(path, plan.model, place.distance_m, index)

    def _start_s(self, cell: FieldCell) -> float:
        """Start of a cell's first round on the timeline of its modelled link (relay and UE share a monotonic clock)."""
        times = self._log.times_of(cell)
        begun = [float(row["begin_s"]) for row in self._rounds[cell] if row["begin_s"] is not None]
        if times is None or times["origin_s"] is None or not begun:
            return 0.0
        return max(0.0, min(begun) - float(times["origin_s"]))

    def _judge(self) -> Judge:
        """A judge without state from earlier runs."""
        return make_judge(self._log.plan.judge, self._head, None, self._target)
