"""A synthetic pair in virtual time, run by the package's own code."""

from __future__ import annotations

from typing import Any

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.intake import Offer
from testbed.bs.judging.base import Judge
from testbed.channel.spec import ChannelSpec
from testbed.config import RunConfig
from testbed.experiments.inputs.formats import Example
from testbed.experiments.inputs.payloads import OWN
from testbed.experiments.inputs.profile import Profile
from testbed.experiments.runs.execute import Watch
from testbed.experiments.runs.prepare import Prompt, Workload
from testbed.experiments.runs.virtual import Models, run_virtual
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.run import Outcome

VOCAB = 512
QUIET = Watch(lambda *_: None, lambda _: None)


def synthetic_models(alpha: float = 0.8) -> Models:
    """A pair without a model; a drafted token is the target's with probability `alpha`."""
    engine = SyntheticEngine(vocab_size=VOCAB)
    offer = Offer("synthetic", "", VOCAB, engine.hidden_size, (), engine.max_positions)
    return Models(engine, SyntheticDrafter(vocab_size=VOCAB, alpha=alpha), offer)


def work(prompts: int = 3, length: int = 20) -> Workload:
    """Prompts of ids, without warm-up."""
    ids = [[(7 * n + i) % VOCAB for i in range(length)] for n in range(prompts)]
    return Workload([Prompt(i, Example("")) for i in ids], [], None, "")


def decode(
    channel: ChannelSpec,
    profile: Profile,
    models: Models,
    payload: str = OWN,
    judge: Judge | None = None,
    **config: Any,
) -> list[Outcome]:
    """Run prompts by the methods of the configuration."""
    run = RunConfig(**{"methods": ("greedy",), "window": 8, "max_tokens": 60, **config})
    return run_virtual(run, work(), QUIET, channel, profile, models, payload, judge)
