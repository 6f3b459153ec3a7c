"""Test problems, also in the form that the oracles take."""

from __future__ import annotations

import numpy as np

from testbed.optim.inference_cost import Cost, IntArray, Model, ServedPair
from tests.support.batching import Instance, Node

LLAMA = {
    "68M": Model(layers=2, hidden=768, ffn=3072),
    "1.1B": Model(layers=22, hidden=2048, ffn=5632),
    "7B": Model(layers=32, hidden=4096, ffn=11008),
    "13B": Model(layers=40, hidden=5120, ffn=13824),
}
TABLE_2 = Cost(c1_draft=4.11e-13, c2_draft=5.6e-4, c1_verify=2.08e-14, c2_verify=1.28e-2)


def paper_serving(
    output_tokens: int = 2048, alpha: float = 0.8, memory_bytes: float = 16e9, draft: str = "1.1B"
) -> ServedPair:
    """Pair of Tables I and II."""
    return ServedPair(
        draft_model=LLAMA[draft], verify_model=LLAMA["7B"], cost=TABLE_2, memory_bytes=memory_bytes,
        max_output_tokens=output_tokens, alpha=alpha,
    )  # fmt: skip


def draw(
    rng: np.random.Generator, tasks: int, most_output: int = 20, distinct: bool = False
) -> tuple[ServedPair, IntArray]:
    """Random problem: either node may be slower, and overheads and memory may or may not matter."""
    draft = Model(layers=int(rng.integers(1, 8)), hidden=int(rng.integers(64, 512)), ffn=int(rng.integers(128, 2048)))
    verify = Model(
        layers=int(rng.integers(8, 40)), hidden=int(rng.integers(512, 4096)), ffn=int(rng.integers(1024, 11008))
    )
    inputs = rng.integers(1, int(rng.choice([8, 64, 512, 2048])), tasks)
    if distinct:
        inputs = rng.choice(2048, tasks, replace=False) + 1
    output_tokens = int(rng.integers(4, most_output + 1))
    cost = Cost(
        c1_draft=1e-3 * float(np.exp(rng.normal())) / _token(draft),
        c2_draft=float(10 ** rng.uniform(-4, -2.3)),
        c1_verify=1e-3 / _token(verify),
        c2_verify=float(10 ** rng.uniform(-3.5, -1.5)),
    )
    weights = 2 * draft.layers * (4 * draft.hidden**2 + 2 * draft.hidden * draft.ffn)
    caches = 4 * draft.layers * draft.hidden * (int(inputs.max()) + output_tokens)
    serving = ServedPair(
        draft_model=draft, verify_model=verify, cost=cost, alpha=float(rng.uniform(0.1, 0.95)), max_window=4,
        memory_bytes=weights + caches * float(rng.choice([1.0, 2.2, 3.5, 100])), max_output_tokens=output_tokens,
    )  # fmt: skip
    return serving, inputs


def _token(model: Model) -> float:
    return 2.0 * model.layers * (4 * model.hidden**2 + 2 * model.hidden * model.ffn)


def instance(serving: ServedPair, inputs: IntArray) -> Instance:
    """The problem in the form that the oracles take."""
    cost, draft, verify = serving.cost, serving.draft_model, serving.verify_model
    return Instance(
        inputs=tuple(int(tokens) for tokens in inputs),
        draft=Node(draft.layers, draft.hidden, draft.ffn, cost.c1_draft, cost.c2_draft),
        verify=Node(verify.layers, verify.hidden, verify.ffn, cost.c1_verify, cost.c2_verify),
        memory_bytes=serving.memory_bytes, output_tokens=serving.max_output_tokens, alpha=serving.alpha,
    )  # fmt: skip
