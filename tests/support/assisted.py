"""Acceptance of a pair in transformers' own assisted generation, and in the testbed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from testbed.channel.spec import ChannelSpec
from testbed.config import RunConfig
from testbed.experiments.inputs.profile import LinearDraft, LinearVerify, Profile
from testbed.experiments.runs.prepare import Workload
from testbed.experiments.runs.virtual import load_models, run_virtual
from tests.support.virtual import QUIET

PROFILE = Profile(
    name="any", about="", source="", draft=LinearDraft(per_token_s=0.01), verify=LinearVerify(base_s=0.03)
)  # fmt: skip
LINK = ChannelSpec(kind="virtual", uplink_mbps=20, downlink_mbps=20, rtt_ms=30)


class Round(NamedTuple):
    """Tokens of a round."""

    drafted: int
    accepted: int


class Assisted:
    """transformers' `generate` with an assistant model that drafts `window` tokens, greedily, in float32.

    Args:
        target, drafter: Hugging Face directories.
    """

    def __init__(self, target: Path, drafter: Path, window: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._target, self._drafter = (
            AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval() for path in (target, drafter)
        )
        settings = self._drafter.generation_config
        settings.num_assistant_tokens, settings.num_assistant_tokens_schedule = window, "constant"
        settings.assistant_confidence_threshold = 0.0
        self._make = self._target._get_candidate_generator
        self._target._get_candidate_generator = self._watched
        self._drafts: list[list[int]] = []
        self._rounds: list[Round] = []

    def _watched(self, *given: Any, **more: Any) -> Any:
        """transformers' own generator of drafts, whose drafts and verdicts are noted."""
        made = self._make(*given, **more)
        propose, judged = made.get_candidates, made.update_candidate_strategy

        def get_candidates(input_ids: Any, **rest: Any) -> Any:
            candidates = propose(input_ids, **rest)
            self._drafts.append(candidates[0][0, input_ids.shape[1] :].tolist())
            return candidates

        def update(input_ids: Any, scores: Any, num_matches: Any) -> None:
            self._rounds.append(Round(len(self._drafts[-1]), int(num_matches)))
            judged(input_ids, scores, num_matches)

        made.get_candidates, made.update_candidate_strategy = get_candidates, update
        return made

    def rounds(self, ids: Sequence[int], tokens: int, ends: Sequence[int]) -> list[Round]:
        """The rounds of one prompt's output of at most `tokens` tokens."""
        import torch

        self._drafts.clear()
        self._rounds.clear()
        prompt = torch.tensor([ids])
        output = self._target.generate(
            prompt, attention_mask=torch.ones_like(prompt), assistant_model=self._drafter, do_sample=False,
            max_new_tokens=tokens, eos_token_id=list(ends), pad_token_id=ends[0],
        )[0].tolist()  # fmt: skip
        drafted, accepted = self._rounds[-1]
        if accepted == drafted - 1 and self._drafts[-1][-1] == output[-1]:
            self._rounds[-1] = Round(drafted, drafted)  # it takes an accepted end token for the target's
        return list(self._rounds)


def own_rounds(target: Path, config: RunConfig, work: Workload) -> list[list[Round]]:
    """The testbed's rounds of every prompt, with the target on transformers, in virtual time."""
    models = load_models(target, "transformers", "float32", config, work)
    try:
        outcomes = run_virtual(config, work, QUIET, LINK, PROFILE, models)
    finally:
        models.close()
    return [[Round(one.drafted, one.accepted) for one in outcome.record.rounds] for outcome in outcomes]


def figures(rounds: Sequence[Round]) -> tuple[float, float]:
    """Acceptance, and mean acceptance length: the bonus token counts."""
    drafted, accepted = (sum(column) for column in zip(*rounds, strict=True))
    return accepted / drafted, 1 + accepted / len(rounds)
