"""Sampled continuations, their probabilities, and a goodness-of-fit test, for tests of rejection sampling."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from testbed.bs.engines.base import VerifyEngine, VerifyRequest
from testbed.protocols import protocol
from testbed.protocols.base import Drafted
from testbed.protocols.codec import AnyArray, decode_downlink, decode_uplink, encode
from testbed.protocols.messages import Draft, Verdict
from testbed.protocols.quantise import pack_q, unpack_q
from testbed.protocols.sampling import Draws, Sampling, request_seed, warp
from testbed.ue.drafters.sampler import DraftSampler

Ids = tuple[int, ...]
Rows = Callable[[Ids], NDArray[np.float32]]
"""A model's output after a prefix: log-probabilities (target) or probabilities (drafter)."""


def reference(logprobs: Sequence[float], sampling: Sampling) -> list[float]:
    """The sampling distribution, computed entry by entry in plain Python."""
    scaled = [x / sampling.temperature for x in logprobs]
    ranked = sorted(range(len(scaled)), key=lambda i: (-scaled[i], i))[: sampling.top_k or None]
    total = math.fsum(math.exp(scaled[i]) for i in ranked)
    kept: dict[int, float] = {}
    for i in ranked:
        if math.fsum(kept.values()) >= sampling.top_p:
            break
        kept[i] = math.exp(scaled[i]) / total
    return [kept.get(i, 0.0) / math.fsum(kept.values()) for i in range(len(scaled))]


def rows(engine: VerifyEngine) -> Rows:
    """An engine's output after a prefix, from passes without a window."""

    @functools.cache
    def said(prefix: Ids) -> AnyArray:
        request = VerifyRequest("rows", np.array(prefix, np.int32), np.zeros(0, np.int32), logprobs=True)
        logprobs = engine.verify([request])[0].logprobs
        assert logprobs is not None
        return logprobs[0]

    return said


def chances(target: Rows, prompt: Ids, sampling: Sampling, length: int) -> dict[Ids, float]:
    """Probability of each continuation of `length` tokens under the target alone."""
    found: dict[Ids, float] = {(): 1.0}
    for _ in range(length):
        found = {
            (*ids, token): chance * step
            for ids, chance in found.items()
            if chance
            for token, step in enumerate(reference(target(prompt + ids).tolist(), sampling))
        }
    return found


def p_value(counts: Counter[Ids], expected: dict[Ids, float]) -> float:
    """Chi-square test of continuations against their probabilities; cells with expected counts below five are
    pooled.
    """
    total = counts.total()
    assert all(expected.get(ids, 0.0) > 0 for ids in counts), "a continuation that cannot be"
    cells = [(counts[ids], total * chance) for ids, chance in expected.items() if chance]
    large = [cell for cell in cells if cell[1] >= 5]
    small = [cell for cell in cells if cell[1] < 5]
    pooled = (sum(c for c, _ in small), math.fsum(e for _, e in small))
    table = [*large, pooled] if pooled[1] > 0 else large
    assert len(table) > 4
    observed, wanted = zip(*table, strict=True)
    return float(stats.chisquare(observed, wanted, sum_check=False).pvalue)


def continuation(
    kind: str, target: Rows, drafter: Rows, prompt: Ids, sampling: Sampling, seed: int, length: int, window: int
) -> Ids:
    """One continuation, round by round over the encoded messages, without a server."""
    ue, bs = protocol(kind), protocol(kind)
    sampler, output, replaced = DraftSampler(sampling, seed), (), None
    for round_ in itertools.count():
        room = length - len(output)
        if room <= 0:
            return output[:length]
        sampler.begin(round_)
        ids: Ids = ()
        for _ in range(min(window, room)):
            ids += (sampler(drafter(prompt + output + ids), len(prompt + output + ids)),)
        q = sampler.window(len(drafter(prompt)))
        drafted = Drafted(np.array(ids, np.int32), np.zeros((len(ids), 1), np.float16), q, replaced)
        arrays = pack_q(ue.uplink(drafted), sampling)
        up = decode_uplink(encode(Draft(session=1, round=round_, base_len=len(prompt + output)), arrays))
        window_ = bs.window(unpack_q(up.arrays, sampling, len(drafter(prompt)), not bs.replaces), 1)
        assert window_.token == replaced

        def said(position: int, before: Ids = prompt + output, ids: Ids = ids) -> NDArray[np.float64]:
            return warp(target(before + ids[:position]), sampling)

        kept = (bs.keep_block if sampling.block else bs.keep)(window_, said, Draws(seed, round_))
        token, replaced = kept.token, None
        if kept.target is not None:
            down = decode_downlink(encode(_verdict(round_, kept.accepted), {"target": kept.target}))
            token = replaced = ue.replace(drafted, kept.accepted, down.arrays, sampler.draws)
        assert token is not None
        output += (*ids[: kept.accepted], token)
    raise AssertionError


def _verdict(round_: int, accepted: int) -> Verdict:
    return Verdict(
        session=1, round=round_, accepted=accepted, token=-1, candidates=0, queried=1, gap=0.0, batch_size=1,
        queue_s=0.0, verify_s=0.0, judge_s=0.0, bs_s=0.0,
    )  # fmt: skip


def sample(
    kind: str, target: Rows, drafter: Rows, prompt: Ids, sampling: Sampling, *, count: int, length: int, window: int
) -> Counter[Ids]:
    """Counts of many continuations."""
    seeds = (request_seed(7, kind, i) for i in range(count))
    return Counter(continuation(kind, target, drafter, prompt, sampling, s, length, window) for s in seeds)
