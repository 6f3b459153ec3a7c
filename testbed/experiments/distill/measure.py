"""What a distilled drafter is worth: acceptance and time on held-out answers, as a UE drafts with it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testbed.assets.model_names import RELEASES, named
from testbed.experiments.distill.acceptance import ReplayedRound, replay, token_ms
from testbed.experiments.distill.answers import Progress, TargetAnswer
from testbed.experiments.distill.config import DistillConfig
from testbed.experiments.distill.prepare import Distillation
from testbed.experiments.results.metrics import acceptance_columns
from testbed.intervals import Bootstrap
from testbed.ue.load_drafter import DrafterOptions, load_drafter

TIMED = 4
"""Answers on which the target is timed under llama.cpp."""


def measured(
    config: DistillConfig,
    work: Distillation,
    answers: Sequence[TargetAnswer],
    file: Path,
    say: Any,
    progress: Progress,
) -> dict[str, Any]:
    """Acceptance by position and time per token of the drafter, and the target's time where llama.cpp can run it."""
    with _loaded(config, work, answers, file) as drafter:
        rounds = replay(drafter, answers, config.window, lambda n: progress(n, len(answers), "held-out answers"))
    draft_ms, target_ms = token_ms(rounds), None
    if config.target in RELEASES:
        with _loaded(config, work, answers, Path(named(config.target, "drafter"))) as drafter:
            target_ms = token_ms(replay(drafter, answers[:TIMED], config.window))
    found = acceptance_columns([one for each in rounds for one in each])
    say(f"acceptance {found['acceptance']:.3f} at window {config.window}, {draft_ms:.2f} ms per drafted token")
    return {
        **found,
        "acceptance_interval": _interval(rounds),
        "draft_ms": draft_ms,
        "target_ms": target_ms,
        "cost": None if target_ms is None else draft_ms / target_ms,
    }


def _loaded(config: DistillConfig, work: Distillation, answers: Sequence[TargetAnswer], file: Path) -> Any:
    """A drafter in a GGUF file, as a UE loads it."""
    context = max(len(one.prompt) + len(one.output) for one in answers) + config.window + 2
    options = DrafterOptions(
        work.target.vocab_size, context if config.vocabulary is None else None, threads=config.threads,
        tokenizer=work.model,
    )  # fmt: skip
    return contextlib.closing(load_drafter(str(file), options))


def _interval(rounds: Sequence[Sequence[ReplayedRound]]) -> tuple[float | None, float | None]:
    """95 % interval of the acceptance over prompts."""
    sums = {name: [sum(getattr(one, name) for one in each) for each in rounds] for name in ("accepted", "drafted")}
    low, high = Bootstrap(sums).ratio("accepted", "drafted", most=1.0).ends
    return None if low is None else max(0.0, low), None if high is None else min(1.0, high)
