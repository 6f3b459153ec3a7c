"""Lookahead: outputs stay the target's own, and the next window is drafted while the verdict is on its way."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.intake import Offer
from testbed.bs.observer import Observer
from testbed.bs.sessions import SessionTable
from testbed.channel.link_model import Direction, constant
from testbed.experiments.deployment.profiled import ProfilePace, ProfileRunner, hinting
from testbed.experiments.deployment.virtual import VirtualDeployment, VirtualStation
from testbed.experiments.inputs.profile import LinearDraft, LinearVerify, Profile
from testbed.protocols import PROTOCOLS, protocol
from testbed.protocols.sampling import GREEDY, Sampling
from testbed.synthetic import next_token
from testbed.tasks import together
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.records import RequestRecord
from testbed.ue.session import DecodingSession
from testbed.ue.windows.base import WindowPolicy
from testbed.ue.windows.fixed import FixedWindow
from testbed.ue.windows.hinted import Hinted
from testbed.virtual_time import run_virtually

VOCAB, TOKENS, PROMPT = 64, 48, [3, 1, 4, 1, 5]
GREEDY_KINDS = [kind for kind, one in PROTOCOLS.items() if not one.sampled]
PROFILE = Profile(
    name="test", about="", source="", draft=LinearDraft(per_token_s=0.01, base_s=0.002, prefill_per_token_s=0.001),
    verify=LinearVerify(base_s=0.02, per_new_s=0.001),
)  # fmt: skip


class Ue(NamedTuple):
    """How one UE decodes."""

    kind: str = "greedy"
    window: int = 4
    alpha: float = 0.8
    lookahead: int | None = 1
    rtt_s: float = 0.1
    uplink_mbps: float = math.inf
    tokens: int = TOKENS
    hinted: bool = False
    ends: tuple[int, ...] = ()
    sampling: Sampling = GREEDY


def own(prompt: list[int], tokens: int, ends: tuple[int, ...] = ()) -> list[int]:
    """The target's output, by its definition."""
    ids = list(prompt)
    while len(ids) < len(prompt) + tokens and (len(ids) == len(prompt) or ids[-1] not in ends):
        ids.append(next_token(ids, VOCAB, 0))
    return ids[len(prompt) :]


def serve(
    ues: list[Ue], sessions: SessionTable | None = None, hints: bool = False, observer: Observer | None = None
) -> tuple[list[RequestRecord], VirtualStation]:
    """Decode with all UEs at once, in virtual time."""

    async def decode(bs: VirtualStation, deployment: VirtualDeployment, number: int, ue: Ue) -> RequestRecord:
        up, down = constant(ue.uplink_mbps, ue.rtt_s / 2), constant(delay_s=ue.rtt_s / 2)
        client = bs.connect((Direction(up), Direction(down)))
        await client.connect("", VOCAB)
        drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=ue.alpha, hidden_size=8, seed=number)
        policy: WindowPolicy = Hinted(FixedWindow(ue.window)) if ue.hinted else FixedWindow(ue.window)
        session = DecodingSession(
            client, drafter, protocol(ue.kind), policy, pace=ProfilePace(PROFILE, deployment.clock),
            sampling=ue.sampling, seed=7, lookahead=ue.lookahead,
        )  # fmt: skip
        return await session.decode([*PROMPT, number % VOCAB], ue.tokens, ue.ends)

    async def main() -> tuple[list[RequestRecord], VirtualStation]:
        deployment = VirtualDeployment()
        engine = SyntheticEngine(vocab_size=VOCAB)
        offer = Offer("synthetic", "", VOCAB, engine.hidden_size, (), engine.max_positions)
        windows = hinting(PROFILE, VOCAB) if hints else None
        runner = ProfileRunner(engine, PROFILE, deployment.clock)
        bs = deployment.base_station(runner, offer, sessions=sessions, windows=windows, observer=observer)
        jobs = (decode(bs, deployment, number, ue) for number, ue in enumerate(ues))
        return await deployment.run(together(jobs)), bs

    return run_virtually(main())


@pytest.mark.parametrize("kind", GREEDY_KINDS)
@settings(max_examples=12, deadline=None)
@given(
    window=st.integers(1, 64), alpha=st.sampled_from([0.0, 0.3, 0.7, 0.95, 1.0]), rtt_ms=st.sampled_from([0, 20, 300]),
    tokens=st.integers(1, 90), ends=st.lists(st.integers(0, VOCAB - 1), max_size=2).map(tuple),
)  # fmt: skip
def test_outputs_are_the_targets_own(
    kind: str, window: int, alpha: float, rtt_ms: int, tokens: int, ends: tuple[int, ...]
) -> None:
    ue = Ue(kind, window, alpha, rtt_s=rtt_ms / 1e3, tokens=tokens, ends=ends)
    (found,), _ = serve([ue])
    assert found.token_ids == own([*PROMPT, 0], tokens, ends)
    assert [record.round for record in found.rounds] == list(range(len(found.rounds)))


def test_sixteen_ues_of_all_kinds_at_once() -> None:
    ues = [
        Ue(kind, window=1 + 3 * i % 11, alpha=(0.5, 0.8, 0.97)[i % 3], lookahead=i % 2, rtt_s=0.02 * (i % 5))
        for i, kind in enumerate((GREEDY_KINDS * 16)[:16])
    ]
    found, _ = serve(ues)
    assert [one.token_ids for one in found] == [own([*PROMPT, i], TOKENS) for i in range(16)]
    assert any(r.hidden_s for one in found for r in one.rounds)


@pytest.mark.parametrize("kind", GREEDY_KINDS)
def test_a_bs_that_hints_and_decodes_alone_keeps_the_output(kind: str) -> None:
    """Hints change the window and turn speculation off, also while a window ahead is on its way."""
    ues = [Ue(kind, 8, alpha=(0.05, 0.6, 0.95)[i % 3], tokens=120, hinted=True, rtt_s=0.05) for i in range(6)]
    found, _ = serve(ues, hints=True)
    assert [one.token_ids for one in found] == [own([*PROMPT, i], 120) for i in range(6)]
    assert any(r.hint == 0 and r.void for one in found for r in one.rounds)


def test_with_a_perfect_drafter_the_wait_is_hidden() -> None:
    """Windows n and n + 1 overlap: every second round hides all of its drafting and a part of its wait."""
    (slow,), _ = serve([Ue(alpha=1.0, lookahead=0, tokens=200)])
    (fast,), _ = serve([Ue(alpha=1.0, tokens=200)])
    assert fast.latency_s < 0.65 * slow.latency_s
    assert sum(r.void for r in fast.rounds[:-2]) == 0 and sum(r.hidden_s for r in slow.rounds) == 0
    assert {r.drafted_ahead for r in fast.rounds[:-3]} == {5}


def test_parts_of_each_round_add_up_to_its_share_of_the_latency() -> None:
    for lookahead in (0, 1):
        (found,), _ = serve([Ue(alpha=0.8, lookahead=lookahead, tokens=200)])
        for r in found.rounds:
            assert r.begin_s is not None and r.end_s is not None and r.sent_s is not None
            parts = r.draft_s + r.link_s + r.queue_s + r.verify_s + r.judge_s + r.overhead_s
            assert parts == pytest.approx(r.end_s - r.begin_s, abs=1e-6)
            assert r.lookahead == lookahead and 0 <= r.void <= r.drafted_ahead
            assert (r.hidden_s > 0) >= (r.sent_s < r.begin_s)
        shares = [(r.end_s or 0.0) - (r.begin_s or 0.0) for r in found.rounds]
        assert sum(shares) == pytest.approx(found.latency_s, abs=1e-6)


def test_a_miss_costs_no_pass() -> None:
    """With a drafter that never agrees, the base station verifies as many rounds as without lookahead."""
    found = [serve([Ue(alpha=0.0, lookahead=lookahead)]) for lookahead in (0, 1)]
    passes = [bs.metrics()["passes"] for _, bs in found]
    assert passes[0] == passes[1]
    (plain,), (ahead,) = found[0][0], found[1][0]
    assert ahead.latency_s == pytest.approx(plain.latency_s, rel=0.01)
    assert ahead.uplink_bytes > plain.uplink_bytes and sum(r.void for r in ahead.rounds) > 0


def test_protocols_that_sample_have_no_lookahead() -> None:
    (found,), _ = serve([Ue("rejection", sampling=Sampling(0.8))])
    assert {(r.lookahead, r.drafted_ahead, r.hidden_s) for r in found.rounds} == {(0, 0, 0.0)}


@pytest.mark.parametrize("kind", GREEDY_KINDS)
@pytest.mark.parametrize("window", [1, 8])
def test_coupled_samples_are_those_without_lookahead(kind: str, window: int) -> None:
    ue = Ue(kind, window, alpha=0.9, tokens=60, sampling=Sampling(0.8, coupled=True))
    (plain,), _ = serve([ue._replace(lookahead=0)])
    (found,), _ = serve([ue])
    assert found.token_ids == plain.token_ids != own([*PROMPT, 0], 60)
    assert any(r.hidden_s for r in found.rounds) or kind == "greedy"


@pytest.mark.parametrize(("rtt_s", "alpha", "chosen"), [(0.1, 0.9, 1), (0.0, 0.9, 1), (0.1, 0.1, 0)])
def test_auto_looks_ahead_where_it_pays(rtt_s: float, alpha: float, chosen: int) -> None:
    """A drafted token takes 10 ms, a pass 20 to 30 ms."""
    (found,), _ = serve([Ue(window=3, alpha=alpha, rtt_s=rtt_s, tokens=200, lookahead=None)])
    assert found.token_ids == own([*PROMPT, 0], 200)
    choices = [r.lookahead for r in found.rounds]
    assert choices[:3] == [1, 1, 1] and choices[20:].count(chosen) > 0.8 * len(choices[20:])
    times_s = [serve([Ue(window=3, alpha=alpha, rtt_s=rtt_s, tokens=200, lookahead=one)])[0][0] for one in (0, 1)]
    assert found.latency_s <= 1.03 * min(one.latency_s for one in times_s)


@pytest.mark.parametrize("kind", ["fh", "sh", "rejection"])
@pytest.mark.parametrize(("rtt_s", "alpha"), [(0.02, 0.5), (0.1, 0.9), (0.4, 0.9)])
def test_auto_chooses_the_window_as_well(kind: str, rtt_s: float, alpha: float) -> None:
    """An uplink of 0.1 Mbit/s needs 1.3 ms for the hidden states of a token; those of the synthetic pair are small."""
    sampling = Sampling(0.8) if kind == "rejection" else GREEDY
    ue = Ue(kind, 16, alpha, None, rtt_s, 0.1, tokens=400, sampling=sampling)
    (found,), _ = serve([ue])
    fixed = [
        serve([ue._replace(window=window, lookahead=lookahead)])[0][0].latency_s
        for window in (1, 2, 4, 8, 16)
        for lookahead in (0, 1)
    ]
    assert found.latency_s <= 1.04 * min(fixed)


def test_a_slow_uplink_makes_windows_shorter() -> None:
    found = [serve([Ue("fh", 32, 0.9, None, 0.1, mbps, tokens=400)])[0][0].rounds[20:] for mbps in (0.001, 10.0)]
    narrow, wide = (sum(record.drafted for record in rounds) / len(rounds) for rounds in found)
    assert narrow < 0.8 * wide


def test_windows_ahead_that_a_full_bs_refuses_are_sent_after_the_verdict() -> None:
    sessions = SessionTable(pending=1)
    (found,), bs = serve([Ue(alpha=1.0)], sessions)
    assert found.token_ids == own([*PROMPT, 0], TOKENS)
    assert sessions.held == (0, 0) and bs.waiting == 0


def test_held_windows_are_counted_and_forgotten_with_their_session() -> None:
    sessions = SessionTable()
    found, bs = serve([Ue(alpha=0.6, rtt_s=0.3) for _ in range(4)], sessions)
    assert len(found) == 4 and sessions.held == (0, 0) and bs.waiting == 0


def test_ids_of_the_prompt_and_output_are_of_the_vocabulary() -> None:
    assert max(own(PROMPT, TOKENS)) < VOCAB and np.unique(own(PROMPT, TOKENS)).size > 5
