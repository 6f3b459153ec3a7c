"""Lookahead and windows that are chosen where a rejection costs another round trip, as under SH."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.optim.draft_window.lookahead import Waits, token_s
from testbed.ue.records import RoundRecord
from testbed.ue.windows.lookahead import SIZES, Lookahead

DRAFT_S, PASS_S = 0.017, 0.02


def round_of(number: int, drafted: int, accepted: int, rtt_s: float) -> RoundRecord:
    """A round that began after a verdict."""
    rejected = int(accepted < drafted)
    return RoundRecord(
        round=number, protocol="sh", base_len=10, drafted=drafted, accepted=accepted, committed=accepted + 1,
        candidates=rejected, queried=rejected, batch_size=1, draft_s=DRAFT_S * drafted, link_s=rtt_s * (1 + rejected),
        queue_s=0.0, verify_s=PASS_S, judge_s=0.0, overhead_s=0.0, uplink_bytes=1, downlink_bytes=1, gap=0.0,
    )  # fmt: skip


@pytest.mark.parametrize("rtt_s", [0.02, 0.1, 0.2, 0.4])
def test_the_choice_is_near_the_best_one(rtt_s: float) -> None:
    alpha = 0.85
    waits = Waits(DRAFT_S, rtt_s + PASS_S, PASS_S, rtt_s)
    costs_s = {(ahead, size): token_s(size, alpha, waits, ahead) for ahead in (0, 1) for size in SIZES if size <= 32}
    for seed in range(8):
        dice, chosen, excess = np.random.default_rng(seed), Lookahead(None, 32), list[float]()
        for number in range(1, 400):
            window = chosen.room(1000)
            if number > 100:
                excess.append(costs_s[chosen.now(window), window] / min(costs_s.values()))
            accepted = int(np.cumprod(dice.random(window) < alpha).sum())
            chosen.observe(round_of(number, window, accepted, rtt_s))
        assert np.mean(excess) < 1.03
