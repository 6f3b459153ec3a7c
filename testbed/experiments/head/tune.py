"""Tunes the threshold θ of a decision head on calibration problems: the largest θ that meets the accuracy goals.

Problems are decoded in virtual time at every θ and channel by the code that a base station runs. A head with channel
features gets one θ for all channels; a head without, one θ per channel.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from testbed.bs.engines.target import describe
from testbed.bs.judging.head import HeadJudge
from testbed.channel.csi import quality
from testbed.channel.spec import ChannelSpec
from testbed.config import RunConfig
from testbed.decision_head.head import DecisionHead, check_fits
from testbed.errors import BadInput
from testbed.experiments.head.config import Goal, TuneConfig
from testbed.experiments.inputs.pair import target_for
from testbed.experiments.inputs.profile import load_profile
from testbed.experiments.inputs.scorers import answer_scorer, expected
from testbed.experiments.runs.execute import Watch
from testbed.experiments.runs.prepare import Workload, prepare
from testbed.experiments.runs.virtual import Models, load_models, run_virtual
from testbed.llama.origin import states_fingerprint
from testbed.ue.run import Outcome

OWN = "greedy"
"""Method whose outputs are the target's own, in fewer passes than target-only decoding."""
GRID = (*(i / 256 for i in range(1, 16)), *(i / 128 for i in range(8, 16)), *(i / 32 for i in range(4, 16)),
        *(i / 16 for i in range(8, 17)))  # fmt: skip
"""Values of θ that are tried: steps of 1/256 near 0, where calibrated heads have their θ, then wider ones."""

Progress = Callable[[str], None]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one θ on one channel."""

    rate_mbps: float
    rtt_ms: float
    quality: float
    threshold: float
    accuracy: float
    lost: float
    """Accuracy loss against target-only decoding on the same problems, in percentage points."""
    error: float
    """Paired standard error of `lost`."""
    aal: float
    rounds: float
    latency_s: float
    limit: float
    """Allowed loss on this channel, in percentage points."""

    def meets(self, errors: float) -> bool:
        """Whether the loss plus `errors` standard errors is within the limit."""
        return self.lost + errors * self.error <= self.limit


@dataclass(frozen=True)
class Problems:
    """Calibration problems with the correctness of the target's own answers."""

    work: Workload
    models: Models
    wanted: list[Hashable]
    """Per problem: the answer that is right, the reference's or the target's own; None: unknown, so that none is."""
    right: list[bool]
    """Per problem: whether the target alone solves it."""


def load_problems(config: TuneConfig, progress: Progress) -> Problems:
    """Load pair and problems, and solve them with the target alone.

    Raises:
        BadInput: unusable models or problems, or too few problems.
    """
    run = _run_config(config, (OWN,), 0.0)
    taken = msgspec.structs.replace(run, limit=config.first + config.prompts)
    whole = prepare(taken)
    prompts = whole.prompts[config.first :]
    if len(prompts) < config.prompts:
        raise BadInput(f"{config.dataset} has fewer than {config.prompts} problems after the first {config.first}")
    work = replace(whole, prompts=prompts)
    model = Path(target_for(config.engine, config.model))
    models = load_models(model, config.engine, config.dtype, run, work, hidden=True)
    progress(f"{len(prompts)} problems by the target alone")
    outcomes = _decode(config, run, work, models, config.goals[0], None)
    score, agreement = answer_scorer(config.scorer)
    own = _answers(config, work, outcomes)
    wanted = own if agreement else [expected(prompt.example, score) for prompt in prompts]
    return Problems(work, models, wanted, _right(own, wanted))


def tune(
    head: DecisionHead, config: TuneConfig, problems: Problems, progress: Progress
) -> tuple[DecisionHead, list[Trial]]:
    """Try the θ of `GRID` in order on every channel; returns the head with the chosen thresholds, and all trials.

    The search on a channel ends where the loss exceeds twice the limit. If no θ meets the goal, θ = 0 (strict).

    Raises:
        BadInput: the head belongs to another pair.
    """
    target = describe(target_for(config.engine, config.model))
    check_fits(head.info, target_fingerprint=states_fingerprint(target.path))
    trials = []
    for goal in config.goals:
        for threshold in GRID:
            trial = _try(head, config, problems, goal, threshold)
            trials.append(trial)
            progress(
                f"{goal.rate_mbps:g} Mbit/s, {goal.rtt_ms:g} ms, θ {trial.threshold:.4g}: AAL {trial.aal:.2f}, "
                f"{trial.lost:+.2f} ± {trial.error:.2f} points lost"
            )
            if trial.lost - config.errors * trial.error > 2 * trial.limit:
                break
    chosen = choose(trials, bool(head.info.features), config.errors)
    info = msgspec.structs.replace(head.info, thresholds=chosen, quality=config.quality)
    return replace(head, info=info), trials


def choose(trials: Sequence[Trial], sees_channel: bool, errors: float) -> tuple[tuple[float, float], ...]:
    """Pairs (q, θ) in order of channel quality q: the largest θ up to which every trial meets its goal. Channels of the
    same quality share a θ.

    A head with channel features gets the smallest over all channels, a head without gets one per channel.
    """
    best: dict[float, float] = {}
    for q in sorted({trial.quality for trial in trials}):
        best[q] = 0.0
        mine = sorted((trial for trial in trials if trial.quality == q), key=lambda trial: trial.threshold)
        for threshold, same in itertools.groupby(mine, lambda trial: trial.threshold):
            if not all(trial.meets(errors) for trial in same):
                break
            best[q] = threshold
    if sees_channel:
        return ((1.0, min(best.values())),)
    return tuple(sorted(best.items()))


def _try(head: DecisionHead, config: TuneConfig, problems: Problems, goal: Goal, threshold: float) -> Trial:
    run = _run_config(config, ("fh",), threshold, head.info.hidden_bits)
    outcomes = _decode(config, run, problems.work, problems.models, goal, HeadJudge(head))
    right = _right(_answers(config, problems.work, outcomes), problems.wanted)
    lost = [100.0 * (own - mine) for own, mine in zip(problems.right, right, strict=True)]
    rounds = [len(o.record.rounds) for o in outcomes]
    return Trial(
        rate_mbps=goal.rate_mbps,
        rtt_ms=goal.rtt_ms,
        quality=quality(goal.csi, config.quality),
        threshold=threshold,
        accuracy=statistics.fmean(right),
        lost=statistics.fmean(lost),
        error=statistics.stdev(lost) / len(lost) ** 0.5,
        aal=sum(len(o.record.token_ids) for o in outcomes) / sum(rounds),
        rounds=statistics.fmean(rounds),
        latency_s=statistics.fmean(o.record.latency_s for o in outcomes),
        limit=goal.points,
    )


def _run_config(config: TuneConfig, methods: tuple[str, ...], threshold: float, bits: int = 16) -> RunConfig:
    return RunConfig(
        methods=methods, window=config.window, threshold=threshold, max_tokens=config.max_tokens,
        dataset=config.dataset, drafter=config.drafter, tokenizer=config.tokenizer, hidden_bits=bits, warmup=0,
        gate=False, prompt_format=config.prompt_format, shots=config.shots, scorer=config.scorer,
    )  # fmt: skip


def _decode(
    config: TuneConfig, run: RunConfig, work: Workload, models: Models, goal: Goal, judge: HeadJudge | None
) -> list[Outcome]:
    channel = ChannelSpec(
        kind="virtual", uplink_mbps=goal.rate_mbps, downlink_mbps=goal.rate_mbps, rtt_ms=goal.rtt_ms,
        profile=config.profile,
    )  # fmt: skip
    watch = Watch(lambda *_: None, lambda _: None)
    return run_virtual(run, work, watch, channel, load_profile(config.profile), models, judge=judge)


def _answers(config: TuneConfig, work: Workload, outcomes: Sequence[Outcome]) -> list[Hashable]:
    """The answer of each problem's output; None: it has none."""
    assert work.prompter is not None
    score, _ = answer_scorer(config.scorer)
    texts = {o.request: work.prompter.text(o.record.token_ids) for o in outcomes}
    return [score(texts[i]) for i in range(len(work.prompts))]


def _right(answers: Sequence[Hashable], wanted: Sequence[Hashable]) -> list[bool]:
    return [answer is not None and answer == want for answer, want in zip(answers, wanted, strict=True)]
