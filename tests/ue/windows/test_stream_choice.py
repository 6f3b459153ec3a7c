"""The setting of streams, chosen from times that a base station reports."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.optim.draft_window.streams import StreamSetting, StreamTimes, stream_token_s
from testbed.protocols.messages import MOST_JOINING
from testbed.ue.windows.stream_choice import StreamChoice


def after(*passes_s: float) -> StreamChoice:
    """The choice after 30 tokens of a base station, and passes with these times."""
    choice = StreamChoice(8, alone=True)
    for _ in range(30):
        choice.drafted(0.005)
        choice.compared(1, 0)
        choice.linked(0.05)
        choice.passed(0, 0.02, 1)
    for pass_s in passes_s:
        choice.passed(0, pass_s, 1)
    return choice


@pytest.mark.parametrize("lie_s", [-86_400.0, -1e-3, 0.0, 1e-300])
def test_a_pass_that_took_no_time_ends_nothing_and_is_forgotten(lie_s: float) -> None:
    lied = after(lie_s, *[0.02] * 200)
    assert lied.times.pass_s == pytest.approx(0.02, rel=1e-3)
    assert lied.setting == after(*[0.02] * 201).setting
    lied = after(*[lie_s] * 100)
    assert lied.times.pass_s > 0


def beside(ues: int, alpha: float, base_s: float, token_s: float, most: int = 16) -> StreamChoice:
    """The choice of one of equal UEs, of which each pass verifies as many drafted tokens as its setting allows."""
    random = np.random.default_rng(1)
    choice = StreamChoice(most, alone=False)
    for _ in range(400):
        setting = choice.setting
        assert setting is not None
        drafted = random.integers(0, setting.chunk + 1, ues)
        accepted = min(int(random.geometric(1 - alpha)) - 1, int(drafted[0]))
        choice.drafted(0.003)
        choice.compared(accepted, int(accepted < drafted[0]))
        choice.linked(0.05)
        choice.passed(int(drafted[0]), base_s + token_s * int(drafted.sum()), accepted + 1, int(drafted[1:].sum()))
    return choice


@pytest.mark.parametrize("ues", [1, 4, 16, 64])
def test_the_setting_is_the_best_for_equal_ues_together(ues: int) -> None:
    """The model at known times is the oracle: a token that all draft makes a pass longer by all of them."""
    base_s, token_s, alpha, most = 0.023, 0.0023, 0.8, 16
    setting = beside(ues, alpha, base_s, token_s).setting
    times = StreamTimes(0.003, 0.05, base_s, ues * token_s)
    costs_s = {
        StreamSetting(size, ahead, True): stream_token_s(StreamSetting(size, ahead, True), alpha, times, most)
        for size in (1, 2, 3, 4, 6, 8, 12, 16)
        for ahead in {size, MOST_JOINING * size}
    }
    assert setting is not None and costs_s[setting] <= 1.06 * min(costs_s.values())


def test_more_ues_choose_shorter_chunks() -> None:
    chunks = [one.chunk for ues in (1, 64) if (one := beside(ues, 0.8, 0.023, 0.0023).setting)]
    assert len(chunks) == 2 and chunks[1] < chunks[0]


def test_what_a_base_station_says_of_others_is_bounded() -> None:
    """It says that others drafted 2³¹ tokens in each pass, in which this UE has none."""
    choice = StreamChoice(8, alone=False)
    for turn in range(6_000):
        choice.drafted(0.003)
        choice.compared(1, 0)
        choice.linked(0.05)
        choice.passed(0, 86_400.0 if turn % 2 else 0.0, 1, 2**31 if turn % 2 else 1)
    assert choice.setting is not None and all(np.isfinite(choice.times))
