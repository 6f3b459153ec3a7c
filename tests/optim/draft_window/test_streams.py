"""The model of streams: its limits, a simulation with other arithmetic, and what it refuses."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import BadInput
from testbed.optim.draft_window.lookahead import Waits, token_s
from testbed.optim.draft_window.streams import StreamSetting, StreamTimes, stream_token_s

JETSON = StreamTimes(0.0166, 0.05, 0.023)


@settings(max_examples=25, deadline=None)
@given(
    window=st.integers(1, 32), alpha=st.floats(0.0, 0.95), draft_s=st.floats(0.001, 0.1), link_s=st.floats(0.0, 0.4),
    pass_s=st.floats(0.001, 0.1),
)  # fmt: skip
def test_one_chunk_at_a_time_is_the_synchronous_round(
    window: int, alpha: float, draft_s: float, link_s: float, pass_s: float
) -> None:
    found = stream_token_s(StreamSetting(window, window, True), alpha, StreamTimes(draft_s, link_s, pass_s), window)
    round_s = token_s(window, alpha, Waits(draft_s, link_s + pass_s, pass_s), 0)
    assert found == pytest.approx(round_s, rel=2e-3)


@settings(max_examples=25, deadline=None)
@given(chunk=st.integers(1, 8), alpha=st.floats(0.0, 1.0), link_s=st.floats(0.0, 0.4))
def test_a_target_that_does_not_wait_is_never_slower_than_alone(chunk: int, alpha: float, link_s: float) -> None:
    setting = StreamSetting(chunk, 8 * chunk, False)
    for draft_s in (0.001, 0.01, 0.03, 0.2):
        assert stream_token_s(setting, alpha, StreamTimes(draft_s, link_s, 0.02), 64) <= 0.02 + 1e-9
    assert stream_token_s(setting, alpha, StreamTimes(10.0, link_s, 0.02), 64) == pytest.approx(0.02, rel=1e-3)


def test_the_arithmetic_of_the_design() -> None:
    """Chunks of one token against the best synchronous window, at d = 18.9 ms, α = .878 and R with the pass in it:
    1.28, 1.40 and 1.43 by its closed form, which cancels a void token at once.
    """
    for round_s, expected in ((0.05, 1.28), (0.1, 1.40), (0.2, 1.43)):
        times = StreamTimes(0.0189, round_s - 0.001, 0.001)
        best = min(token_s(window, 0.878, Waits(0.0189, round_s), 0) for window in range(1, 33))
        found = best / stream_token_s(StreamSetting(1, 64, True), 0.878, times, 64)
        assert expected - 0.12 < found < expected + 0.02


def test_a_faster_device_a_shorter_link_and_better_drafts_are_never_slower() -> None:
    for waits in (True, False):
        setting = StreamSetting(2, 16, waits)
        tokens = [stream_token_s(setting, alpha, JETSON, 16) for alpha in np.linspace(0, 0.99, 20)]
        assert all(better <= 1.0003 * worse for worse, better in itertools.pairwise(tokens))  # long runs are cut off
        links = [stream_token_s(setting, 0.9, JETSON._replace(link_s=s), 16) for s in (0.0, 0.02, 0.1, 0.4)]
        assert all(longer >= shorter / 1.0003 for shorter, longer in itertools.pairwise(links))


def test_the_place_ahead_is_used_up_over_a_long_link() -> None:
    """At 400 ms, eight chunks of one token do not fill the link, so that the UE waits; larger chunks fill it."""
    times = JETSON._replace(link_s=0.4)
    small, large = (stream_token_s(StreamSetting(size, 8 * size, True), 0.95, times, 32) for size in (1, 4))
    assert large < 0.8 * small


def simulated(setting: StreamSetting, alpha: float, times: StreamTimes, runs: int) -> float:
    """Seconds per token by following every message in small steps of time."""
    rng, step = np.random.default_rng(7), 0.0005
    total_s, tokens = 0.0, 0
    for _ in range(runs):
        right = int(rng.geometric(1 - alpha)) - 1
        now, decoded, known, drafted, sent = 0.0, 0, 0, 0, 0
        drafting_s, busy = None, None
        up: list[tuple[float, int]] = []
        down: list[tuple[float, int]] = []
        at_bs = 0
        if not setting.waits:
            raise NotImplementedError
        while True:
            while down and down[0][0] <= now:
                known = down.pop(0)[1]
            if known > right:
                break
            if drafting_s is not None and now >= drafting_s:
                drafted, drafting_s = drafted + 1, None
                if drafted - sent >= setting.chunk:
                    up.append((now + times.link_s / 2, drafted))
                    sent = drafted
            if drafted < known and drafting_s is None:
                drafted = sent = known
            if drafting_s is None and drafted + 1 - known <= setting.ahead:
                drafting_s = now + times.token_s
            while up and up[0][0] <= now:
                at_bs = max(at_bs, up.pop(0)[1])
            if busy is not None and now >= busy[0]:
                decoded, busy = busy[1], None
                down.append((now + times.link_s / 2, decoded))
            if busy is None and at_bs > decoded:
                busy = (now + times.pass_s, at_bs + 1)
            now += step
        total_s += now if drafting_s is None else max(now, drafting_s)
        tokens += right + 1
    return total_s / tokens


@pytest.mark.parametrize(
    ("setting", "alpha", "times"),
    [
        (StreamSetting(1, 8, True), 0.8, StreamTimes(0.0165, 0.05, 0.023)),
        (StreamSetting(3, 24, True), 0.9, StreamTimes(0.0105, 0.1, 0.02)),
        (StreamSetting(4, 8, True), 0.85, StreamTimes(0.0205, 0.03, 0.041)),
    ],
)
def test_a_simulation_in_small_steps_agrees(setting: StreamSetting, alpha: float, times: StreamTimes) -> None:
    found = simulated(setting, alpha, times, 250)
    assert stream_token_s(setting, alpha, times, 64) == pytest.approx(found, rel=0.06)


@pytest.mark.parametrize(
    ("setting", "alpha", "times"),
    [
        (StreamSetting(0, 4, True), 0.5, JETSON),
        (StreamSetting(4, 3, True), 0.5, JETSON),
        (StreamSetting(40, 80, True), 0.5, JETSON),
        (StreamSetting(4, 8, True), 1.5, JETSON),
        (StreamSetting(4, 8, True), math.nan, JETSON),
        (StreamSetting(4, 8, True), 0.5, StreamTimes(-0.01, 0.1, 0.02)),
        (StreamSetting(4, 8, True), 0.5, StreamTimes(0.01, math.inf, 0.02)),
        (StreamSetting(4, 8, True), 0.5, StreamTimes(0.01, 0.1, 0.0)),
    ],
)
def test_what_cannot_be_is_refused(setting: StreamSetting, alpha: float, times: StreamTimes) -> None:
    with pytest.raises(BadInput):
        stream_token_s(setting, alpha, times, 32)
