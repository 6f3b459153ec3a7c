"""Acceptance of the bundled pair, against transformers' assisted generation: same models, same prompts, same window."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.channel.spec import ChannelSpec
from testbed.config import RunConfig
from testbed.experiments.results.rows import rows
from testbed.experiments.runs.prepare import Workload, prepare
from testbed.experiments.runs.virtual import load_models, run_virtual
from testbed.models.bundle import bundled
from tests.experiments.runs.test_virtual import BARE
from tests.support.virtual import QUIET

pytestmark = pytest.mark.long
PROMPTS, TOKENS = 10, 96


def assisted(work: Workload, window: int, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Tokens drafted and accepted in each round of transformers' own loop."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.generation.candidate_generator import AssistedCandidateGenerator as Generator

    target, drafter = (
        AutoModelForCausalLM.from_pretrained(bundled().require(name), dtype=torch.float32).eval()
        for name in ("target", "drafter_hf")
    )
    drafter.generation_config.num_assistant_tokens = window
    drafter.generation_config.num_assistant_tokens_schedule = "constant"
    drafter.generation_config.assistant_confidence_threshold = 0.0
    drafts: list[list[int]] = []
    found: list[tuple[int, int]] = []
    propose, judged = Generator.get_candidates, Generator.update_candidate_strategy

    def get_candidates(self: Any, input_ids: Any, **more: Any) -> Any:
        candidates = propose(self, input_ids, **more)
        drafts.append(candidates[0][0, input_ids.shape[1] :].tolist())
        return candidates

    def update(self: Any, input_ids: Any, scores: Any, num_matches: Any) -> None:
        found.append((len(drafts[-1]), int(num_matches)))
        judged(self, input_ids, scores, num_matches)

    monkeypatch.setattr(Generator, "get_candidates", get_candidates)
    monkeypatch.setattr(Generator, "update_candidate_strategy", update)
    for prompt in work.prompts:
        ids = torch.tensor([prompt.ids])
        output = target.generate(ids, assistant_model=drafter, do_sample=False, max_new_tokens=TOKENS)[0].tolist()
        drafted, accepted = found[-1]
        if (
            accepted == drafted - 1 and drafts[-1][-1] == output[-1]
        ):  # an accepted end token counts as the target's there
            found[-1] = (drafted, drafted)
    return found


@pytest.mark.parametrize("window", [4, 8])
def test_acceptance_is_that_of_transformers(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig(methods=("greedy",), window=window, limit=PROMPTS, max_tokens=TOKENS, warmup=0, kv_type="f32")
    work = prepare(config)
    models = load_models(bundled().require("target"), "transformers", "float32", config, work)
    try:
        link = ChannelSpec(kind="virtual", uplink_mbps=20, downlink_mbps=20, rtt_ms=30)
        outcomes = run_virtual(config, work, QUIET, link, BARE, models)
    finally:
        models.close()
    examples = [prompt.example for prompt in work.prompts]
    (row,) = rows(outcomes, examples, {}, window=window, threshold=0.0)
    theirs = assisted(work, window, monkeypatch)
    drafted, accepted = (sum(column) for column in zip(*theirs, strict=True))
    assert row["acceptance"] == pytest.approx(accepted / drafted, rel=0.01)
    assert row["mean_acceptance_length"] == pytest.approx(1 + accepted / len(theirs), rel=0.01)
