"""`testbed ue run` behind its command line: run, rows, outputs, run directory."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from testbed.clock import unix_zero_s
from testbed.config import RunConfig, resolved, save
from testbed.errors import BadInput
from testbed.experiments.deployment.distortions import STILL, TOLD_S
from testbed.experiments.inputs.marks import Mark, marker
from testbed.experiments.power.recorder import DATE_BACK, UNDER_WAY, finish, settled, source_of, watching
from testbed.experiments.results import directory as results
from testbed.experiments.results.files import write_requests, write_rounds
from testbed.experiments.results.rows import rows as rows_of
from testbed.experiments.results.traffic import SOCKET
from testbed.experiments.runs.execute import Begun, Watch, execute
from testbed.experiments.runs.journal import Journal
from testbed.experiments.runs.prepare import Workload, prepare
from testbed.experiments.runs.progress import LiveProgress
from testbed.power.files import last_sample_s
from testbed.power.reading import PowerSource
from testbed.protocols.methods import run_method
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.run import Outcome, own_output, sampling_of

LOG = logging.getLogger(__name__)
GIVEN = "prompt.json"
"""Prompts that were given on the command line, as a list of texts, or one as a list of ids."""
LATEST_S = 4.1e9
"""Latest date of a part of a run, in the year 2099: no clock is that far ahead."""
TIMES = ("begin_s", "sent_s", "verdict_s", "end_s")
"""Times of a round on the clock."""


@dataclass
class UeResult:
    """Results of a UE's run."""

    outputs: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    losses: list[str]
    """One line for every output that is not the target's own."""
    outcomes: list[Outcome] = field(repr=False)
    texts: dict[tuple[str, int], str] = field(repr=False)
    marks: dict[tuple[str, int], Mark | None] = field(repr=False)
    power: dict[str, Any] | None = None
    """Samples from which the energy of `rows` is computed; None: none were taken."""
    still_s: float = 0.0
    """Longest standstill of this process since the run was begun or resumed."""

    def document(self) -> dict[str, Any]:
        """The JSON answer of `ue run`."""
        return {"outputs": self.outputs, "rows": self.rows} | ({} if self.power is None else {"power": self.power})


def run_ue(config: RunConfig, given: Sequence[int | str] | None, out: Path | None, resume: bool = False) -> UeResult:
    """Run, and write a run directory where `out` says so.

    Args:
        resume: continue the unfinished run in the directory.

    Raises:
        BadInput: anything in the configuration that cannot be used.
        LinkError: the BS cannot be reached.
    """
    work = prepare(config, given, turns=True)
    if out is None and resume:
        raise BadInput("--resume needs --out DIR, the directory of the run to resume")
    with source_of(config) as source:  # before anything is written
        if out is not None:
            return _into(out, config, work, source, given, resume)
        live = LiveProgress(len(work.prompts) * len(config.methods))
        with watching(config, source, None, False) as power, live:
            outcomes = asyncio.run(execute(config, work, Watch(live.round, live.done)))
            return result_of(config, work, *settled(power, outcomes))


def _into(
    out: Path,
    config: RunConfig,
    work: Workload,
    source: PowerSource | None,
    given: Sequence[int | str] | None,
    resume: bool,
) -> UeResult:
    """Run, and write a run directory."""
    journal = (Journal.resume if resume else Journal.begin)(out, config, work)
    try:
        if resume:
            _go_on_after(journal.done, out)
        if given is not None:
            results.write_text(out / GIVEN, json.dumps(list(given)))
        stood = list[float]()
        with watching(config, source, out, resume) as power:
            outcomes, samples = settled(power, _journalled(config, work, journal, stood.append))
            result = result_of(config, work, [*map(_on_this_clock, outcomes)], samples)
        result.still_s = max(stood)
        write_run(out, config, work, result)
        finish(out)
        journal.finish()
    finally:
        journal.close()
    return result


def _go_on_after(done: Sequence[Outcome], out: Path) -> None:
    """Have times come after those of an interrupted part of the run."""
    known = [(one.record.clock_unix_s, _end_s(one.record)) for one in done]
    ends_s = [zero_s + last_s for zero_s, last_s in known if zero_s is not None]
    ends_s = [end_s for end_s in [*ends_s, last_sample_s(out / UNDER_WAY)] if end_s < LATEST_S]
    later_s = unix_zero_s.go_on_after(max(ends_s, default=-math.inf))
    if later_s > TOLD_S:
        LOG.warning(
            "the date is %.0f s before the end of the interrupted part of this run; times go on from that end, and no "
            "external meter fits both parts",
            later_s,
        )  # fmt: skip


def _journalled(
    config: RunConfig, work: Workload, journal: Journal, stood: Callable[[float], None] = lambda still_s: None
) -> list[Outcome]:
    """Run what the journal does not have yet, and write it down there."""
    with LiveProgress(len(work.prompts) * len(config.methods)) as live:

        def ended(outcome: Outcome) -> None:
            journal.add(outcome)
            live.done(outcome)

        for outcome in journal.done:
            live.done(outcome)
        watch = Watch(live.round, ended, journal.greet, stood)
        return asyncio.run(execute(config, work, watch, Begun(journal.identity, journal.done)))


def _end_s(record: RequestRecord) -> float:
    return max((one.end_s or 0.0 for one in record.rounds), default=0.0)


def _on_this_clock(outcome: Outcome) -> Outcome:
    """An outcome whose times are those of this process's monotonic clock. That of the part before a resumption began
    anew if its times are still to come; how far both are apart is told by the date, in whole seconds.
    """
    record, rounds = outcome.record, list[RoundRecord]()
    zero_s = record.clock_unix_s
    if zero_s is None or _end_s(record) <= time.perf_counter():
        return outcome
    shift_s = float(round(zero_s - unix_zero_s()))
    for one in record.rounds:
        known = {name: time_s for name in TIMES if (time_s := getattr(one, name)) is not None}
        rounds.append(msgspec.structs.replace(one, **{name: time_s + shift_s for name, time_s in known.items()}))
    record = msgspec.structs.replace(record, clock_unix_s=zero_s - shift_s, rounds=rounds)
    return msgspec.structs.replace(outcome, record=record)


def result_of(
    config: RunConfig,
    work: Workload,
    outcomes: list[Outcome],
    power: dict[str, Any] | None = None,
    counted: str = SOCKET,
) -> UeResult:
    """Rows, outputs and losses of outcomes.

    Args:
        power: what is known of their energy's samples.
        counted: which bytes they counted, see `results.traffic`.
    """

    def text(outcome: Outcome) -> str:
        return work.prompter.text(outcome.record.token_ids) if work.prompter else ""

    texts = {(o.method, o.request): text(o) for o in outcomes}
    examples = [p.example for p in work.prompts]
    own, mark = _own_texts(config, work), marker(config.scorer, config.run_code)
    marks = {key: mark(examples[key[1]], said, (own or {}).get(key)) for key, said in texts.items()}
    ordered = sorted(outcomes, key=lambda o: config.methods.index(o.method))
    rows = rows_of(
        ordered, examples, texts, window=config.window, threshold=config.threshold, hidden_bits=config.hidden_bits,
        window_rule=config.window_rule, lookahead=config.lookahead, own=own,
        idle_w=power["idle_w"] if power else None, sampling=sampling_of(config),
        mark=mark,
    )  # fmt: skip
    rows = [row | {"bytes_counted": counted} for row in rows]
    by_request = sorted(outcomes, key=lambda o: (o.request, o.method))
    outputs = [_output(work, o, texts[o.method, o.request]) for o in by_request]
    strict = [o for o in outcomes if run_method(o.method).exact(config.threshold)]
    losses = [_loss(work, o) for o in strict if o.divergence is not None and not o.divergence.tie]
    return UeResult(outputs, rows, losses, outcomes, texts, marks, power)


def _output(work: Workload, outcome: Outcome, text: str) -> dict[str, Any]:
    """An output in the JSON answer of `ue run`."""
    example = work.prompts[outcome.request].example
    known = {name: getattr(example, name) for name in results.ABOUT if getattr(example, name) not in (None, 0)}
    return {
        "method": outcome.method,
        "prompt": example.question,
        **known,
        "token_ids": outcome.record.token_ids,
        "text": text,
        "rounds": len(outcome.record.rounds),
        "finish_reason": outcome.record.finish_reason,
    }


def _own_texts(config: RunConfig, work: Workload) -> dict[tuple[str, int], str] | None:
    """The target's own outputs by method and prompt, where the run has them."""
    if work.prompter is None or not work.own:
        return None
    sampling, found = sampling_of(config), {}
    for method in config.methods:
        for i in range(len(work.prompts)):
            ids = work.own.get(own_output(method, sampling, config.seed, i, config.max_tokens))
            if ids is not None:
                found[method, i] = work.prompter.text(ids)
    return found


def _loss(work: Workload, outcome: Outcome) -> str:
    found = outcome.divergence
    assert found is not None

    def show(ids: list[int]) -> str:
        return f"{ids} {work.prompter.text(ids)!r}" if work.prompter else str(ids)

    question = work.prompts[outcome.request].example.question
    return (
        f"not lossless: {outcome.method}, prompt {outcome.request} ({question[:60]!r}), output position "
        f"{found.position}: {show(found.output)} where the target decodes {show(found.target)}; "
        f"logit gap {found.gap:.3g}"
    )


def write_run(out: Path, config: RunConfig, work: Workload, result: UeResult) -> None:
    """Write config, rounds, requests and summary; the summary last, so that its presence means a whole run."""
    save(config, out / "config.yaml")
    write_rounds(out, result.outcomes)
    examples = [prompt.example for prompt in work.prompts]
    write_requests(out, result.outcomes, result.texts, examples, result.marks)
    document = results.summary(resolved(config), config.seed, results.host(), result.rows)
    more = {STILL: result.still_s, DATE_BACK: unix_zero_s.later_s}
    document |= {name: value for name, value in more.items() if value > TOLD_S}
    results.write_summary(out, document | ({} if result.power is None else {"power": result.power}))
