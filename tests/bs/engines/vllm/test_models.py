"""Rows of prompts that are computed in pieces, some of them again from the start after their blocks were taken."""

from __future__ import annotations

import os
import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from testbed.bs.engines.vllm.engine import ENVIRONMENT

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.v1.pool.metadata import PoolingStates

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")

VOCAB = 8


def pooled(pooler: Any, parts: list[tuple[int, int, list[int], PoolingStates]]) -> list[Tensor | None]:
    """One pass over positions [start, end) of prompts, with what their last positions face; states are positions."""
    import torch
    from vllm.pooling_params import PoolingParams
    from vllm.v1.pool.metadata import PoolingMetadata

    asks = [{"facing": facing, "hidden": True, "logprobs": False} for _, _, facing, _ in parts]
    metadata = PoolingMetadata(
        prompt_lens=torch.full((len(parts),), 40),
        prompt_token_ids=None,
        prompt_token_ids_cpu=None,
        pooling_params=[PoolingParams(task="token_embed", extra_kwargs=ask) for ask in asks],
        pooling_states=[state for *_, state in parts],
    )
    counts, ends = np.array([end - start for start, end, *_ in parts]), torch.tensor([end for _, end, *_ in parts])
    metadata.build_pooling_cursor(counts, ends, device=torch.device("cpu"))
    positions = [float(position) for start, end, *_ in parts for position in range(start, end)]
    outputs: list[Tensor | None] = pooler(torch.tensor(positions)[:, None], metadata)
    return outputs


@pytest.mark.parametrize("seed", range(20))
def test_each_row_once_however_a_prompt_is_cut_and_begun_again(seed: int) -> None:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from vllm.v1.pool.metadata import PoolingStates

        from testbed.bs.engines.vllm.models import TailPooler

    rng = np.random.default_rng(seed)
    pooler = TailPooler(lambda states: torch.arange(VOCAB) * states, VOCAB)
    facing = [[0] * int(rng.integers(1, 12)) for _ in range(3)]
    states, at, left = [PoolingStates() for _ in facing], [0] * len(facing), set(range(len(facing)))
    while left:
        parts, order = [], sorted(left)
        for i in order:
            if rng.random() < 0.2:  # its blocks were taken
                at[i] = 0
            end = min(40, at[i] + int(rng.integers(1, 30)))
            parts.append((at[i], end, facing[i], states[i]))
            at[i] = end
        for i, rows in zip(order, pooled(pooler, parts), strict=True):
            assert (rows is None) == (at[i] < 40)
            if rows is not None:
                expected = list(range(40 - len(facing[i]), 40))
                assert rows[:, 3].tolist() == expected
                left.remove(i)
