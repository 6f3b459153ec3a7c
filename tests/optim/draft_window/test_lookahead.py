"""The model of lookahead against virtual time, its limits, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.intake import Offer
from testbed.channel.link_model import Direction, constant
from testbed.errors import BadInput
from testbed.experiments.deployment.load import LoadUe
from testbed.experiments.deployment.profiled import ProfilePace, ProfileRunner
from testbed.experiments.deployment.virtual import VirtualDeployment
from testbed.experiments.inputs.profile import LinearDraft, LinearVerify, Profile
from testbed.optim.draft_window.lookahead import Rates, Waits, best_window, gain, response_s, token_s
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.records import RequestRecord
from testbed.ue.windows.fixed import FixedWindow
from testbed.virtual_time import run_virtually

VOCAB, TOKENS, PASS_S = 512, 2500, 0.02


def decode(window: int, alpha: float, draft_s: float, rtt_s: float, lookahead: int) -> RequestRecord:
    profile = Profile(
        name="test", about="", source="", draft=LinearDraft(per_token_s=draft_s), verify=LinearVerify(base_s=PASS_S)
    )

    async def main() -> RequestRecord:
        deployment = VirtualDeployment()
        engine = SyntheticEngine(vocab_size=VOCAB)
        offer = Offer("synthetic", "", VOCAB, engine.hidden_size, (), engine.max_positions)
        bs = deployment.base_station(ProfileRunner(engine, profile, deployment.clock), offer)
        way = constant(delay_s=rtt_s / 2)
        client = bs.connect((Direction(way), Direction(way)))

        async def ask() -> RequestRecord:
            await client.connect("", VOCAB)
            drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=alpha)
            pace = ProfilePace(profile, deployment.clock)
            ue = LoadUe(client, drafter, FixedWindow(window), pace, lookahead=lookahead)
            return await ue.decode([3, 1, 4], TOKENS)

        return await deployment.run(ask())

    return run_virtually(main())


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize(
    ("window", "alpha", "draft_s", "rtt_s"),
    [(2, 0.88, 0.019, 0.05), (4, 0.88, 0.019, 0.1), (6, 0.95, 0.01, 0.2), (4, 0.7, 0.005, 0.1), (2, 0.9, 0.06, 0.03)],
)
def test_virtual_time_agrees_within_five_percent(
    window: int, alpha: float, draft_s: float, rtt_s: float, lookahead: int
) -> None:
    found = decode(window, alpha, draft_s, rtt_s, lookahead)
    accepted = sum(r.accepted for r in found.rounds)
    measured = accepted / (accepted + sum(r.accepted < r.drafted for r in found.rounds))
    assert measured == pytest.approx(alpha, abs=0.03)
    expected_s = token_s(window, measured, Waits(draft_s, rtt_s + PASS_S, PASS_S), lookahead)
    assert found.latency_s / TOKENS == pytest.approx(expected_s, rel=0.05)


def played(tokens: int, window: int, alpha: float, waits: Waits, lookahead: int, dice: np.random.Generator) -> float:
    """Seconds of one response, step by step: what is drafted, sent and verified when."""
    now_s, left = 0.0, tokens
    while True:  # a window from a miss
        begun_s, from_s, before_s = now_s, now_s, -math.inf
        first = window
        while True:
            accepted = int(np.cumprod(dice.random(window) < alpha).sum())
            ended = accepted >= left  # the drafter ends there, too
            sent_s = from_s + (first - window + (left if ended else window)) * waits.token_s
            verdict_s = max(sent_s + waits.round_trip_s, before_s + waits.pass_s)
            if accepted < window and not ended:
                verdict_s += waits.rejection_s
            left -= accepted + 1
            if left <= 0:
                return verdict_s
            from_s = max(sent_s, begun_s)
            if not lookahead or verdict_s < from_s + waits.token_s or accepted < window or dice.random() >= alpha:
                now_s = verdict_s
                break
            begun_s = before_s = verdict_s
            first = window + 1


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize(
    ("tokens", "window", "alpha", "waits"),
    [(1, 4, 0.9, Waits(0.02, 0.4)), (11, 4, 0.9, Waits(0.02, 0.4, 0.02)), (70, 4, 0.875, Waits(0.017, 0.42, 0.02)),
     (40, 2, 0.7, Waits(0.05, 0.1, 0.05)), (25, 8, 0.95, Waits(0.002, 0.03, 0.03)), (9, 3, 0.0, Waits(0.02, 0.1)),
     (40, 4, 0.8, Waits(0.02, 0.1, 0.02, 0.1)), (3, 4, 0.8, Waits(0.02, 0.1, 0.02, 0.3))],
)  # fmt: skip
def test_a_response_takes_as_long_as_its_rounds_played(
    tokens: int, window: int, alpha: float, waits: Waits, lookahead: int
) -> None:
    dice = np.random.default_rng([tokens, window, lookahead])
    times = [played(tokens, window, alpha, waits, lookahead, dice) for _ in range(4000)]
    error_s = 4 * float(np.std(times)) / math.sqrt(len(times)) + 1e-9
    assert response_s(tokens, window, alpha, waits, lookahead) == pytest.approx(float(np.mean(times)), abs=error_s)


@settings(max_examples=15)
@given(window=st.integers(1, 9), alpha=st.floats(0.0, 0.97), draft_s=st.floats(0.001, 0.1), lookahead=st.integers(0, 1))
def test_a_long_response_takes_the_time_of_its_tokens(
    window: int, alpha: float, draft_s: float, lookahead: int
) -> None:
    waits = Waits(draft_s, 0.2, 0.05, 0.07)
    more_s = [response_s(tokens, window, alpha, waits, lookahead) for tokens in (300, 400)]
    assert (more_s[1] - more_s[0]) / 100 == pytest.approx(token_s(window, alpha, waits, lookahead), rel=0.01)


@given(st.integers(1, 40), st.floats(0, 1), st.integers(1, 50), st.sampled_from([0, 1]))
def test_equal_rates_by_position_are_one_rate(window: int, alpha: float, positions: int, lookahead: int) -> None:
    waits = Waits(0.02, 0.1, 0.03)
    assert token_s(window, [alpha] * positions, waits, lookahead) == pytest.approx(
        token_s(window, alpha, waits, lookahead)
    )


@pytest.mark.parametrize(("window", "rates"), [(1, [0.4, 0.9]), (4, [0.9, 0.5, 0.8]), (6, [0.7, 0.95, 0.9, 0.3])])
def test_rates_by_position_commit_what_coins_say(window: int, rates: list[float]) -> None:
    known = np.array([*rates, *rates[-1:] * window][:window])
    coins = np.random.default_rng(3).random((200_000, window)) < known
    tokens = 1 + np.cumprod(coins, axis=1).sum(axis=1).mean()
    assert token_s(window, rates, Waits(0.0, 1.0), 0) == pytest.approx(1 / tokens, rel=0.005)
    whole, guess = float(np.prod(known)), [*rates, *rates[-1:] * window][window]
    no_time = Waits(0.0, 1.0)  # nothing is drafted in time: hits follow one another at the round trip's rate
    single = token_s(1, whole * guess, no_time, 1, 1.0) * (1 + whole * guess)
    assert token_s(window, rates, no_time, 1) * tokens == pytest.approx(single, rel=0.005)


@given(
    window=st.integers(1, 64), draft_s=st.floats(0.001, 0.1), trip_s=st.floats(0.001, 0.5), share=st.floats(0.0, 1.0)
)
def test_without_hits_it_is_a_round_and_with_hits_alone_the_slowest_part(
    window: int, draft_s: float, trip_s: float, share: float
) -> None:
    waits = Waits(draft_s, trip_s, share * trip_s)
    never = token_s(window, 0.0, waits, 1)
    assert never == pytest.approx(window * draft_s + trip_s) == token_s(window, 0.0, waits, 0)
    ahead_s = (window + 1) * draft_s
    if draft_s < share * trip_s:  # the guess is drafted before each verdict
        steady = max(ahead_s, (ahead_s + trip_s) / 2, waits.pass_s)
        assert token_s(window, 0.9999 ** (1 / window), waits, 1) * (window + 1) == pytest.approx(steady, rel=0.03)


@given(window=st.integers(1, 32), alpha=st.floats(0.0, 0.99), draft_s=st.floats(0.0, 0.1), trip_s=st.floats(0.001, 0.5))
def test_it_never_loses_and_at_most_halves_the_time(window: int, alpha: float, draft_s: float, trip_s: float) -> None:
    waits = Waits(draft_s, trip_s)
    plain, ahead = token_s(window, alpha, waits, 0), token_s(window, alpha, waits, 1)
    assert plain / 2 - 1e-9 <= ahead <= plain + 1e-9


def test_it_gains_over_a_link_and_not_with_a_slow_drafter() -> None:
    assert gain(4, 0.88, Waits(0.019, 0.1)) > 1.2
    assert gain(1, 0.88, Waits(0.06, 0.05)) == 1.0
    assert gain(4, 0.0, Waits(0.019, 0.1)) == pytest.approx(1.0)
    assert gain(4, 0.88, Waits(0.0, 0.0)) == pytest.approx(1.0)
    waits = Waits(0.019, 0.1)
    assert best_window(32, 0.88, waits, 1) < best_window(32, 0.88, waits, 0)


@pytest.mark.parametrize(
    ("window", "alpha", "waits", "guess"),
    [
        (0, 0.5, Waits(0.01, 0.1), None),
        (4, 1.5, Waits(0.01, 0.1), None),
        (4, 0.5, Waits(0.01, 0.1), -0.1),
        (4, math.nan, Waits(0.01, 0.1), None),
        (4, 0.5, Waits(-0.01, 0.1), None),
        (4, 0.5, Waits(0.01, math.inf), None),
        (4, 0.5, Waits(0.01, 0.1, 0.2), None),
        (4, [], Waits(0.01, 0.1), None),
        (4, [0.5, 1.1], Waits(0.01, 0.1), None),
    ],
)
def test_what_cannot_be_is_refused(window: int, alpha: Rates, waits: Waits, guess: float | None) -> None:
    with pytest.raises(BadInput):
        token_s(window, alpha, waits, 1, guess)
    with pytest.raises(BadInput):
        response_s(10, window, alpha, waits, 1, guess)


@pytest.mark.parametrize("tokens", [0, -1, 4097])
def test_a_response_has_tokens(tokens: int) -> None:
    with pytest.raises(BadInput, match="a response has 1 to 4096 tokens"):
        response_s(tokens, 4, 0.5, Waits(0.01, 0.1), 1)
