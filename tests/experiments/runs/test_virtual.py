"""Virtual runs of the same code: against the cost model, round by round; deterministic; in step with real sockets."""

from __future__ import annotations

import msgspec
import pytest

from testbed.bs.judging.head import HeadJudge
from testbed.channel.cost import Sizes, id_bits
from testbed.channel.csi import Csi
from testbed.channel.spec import ChannelSpec
from testbed.experiments.inputs.payloads import OWN, REJECTION
from testbed.experiments.inputs.profile import HeadCost, Hot, LinearDraft, LinearVerify, PassWork, Profile
from testbed.experiments.results.rows import PARTS
from testbed.protocols import protocol
from testbed.protocols.base import HEADER_DOWN_BYTES, HEADER_UP_BYTES
from tests.support.heads import random_head
from tests.support.virtual import decode, synthetic_models

DRAFT = LinearDraft(per_token_s=0.01, base_s=0.002, prefill_per_token_s=0.001)
VERIFY = LinearVerify(base_s=0.03, per_drafted_s=0.004, undrafted_s=0.02)
BARE = Profile(name="bare", about="", source="", draft=DRAFT, verify=VERIFY)
LARGE = msgspec.structs.replace(BARE, vocab_size=32000, hidden_size=1000)
LINK = ChannelSpec(kind="virtual", uplink_mbps=2, downlink_mbps=1, rtt_ms=30)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("greedy", OWN),
        ("fh", OWN),
        ("sh", OWN),
        ("greedy", REJECTION),
        ("rejection", OWN),
        ("rejection", REJECTION),
        ("split", OWN),
    ],
)
def test_every_round_costs_what_the_cost_model_says(kind: str, payload: str) -> None:
    sizes = Sizes(1000, id_bits(32000), 16, 32000)
    csi = Csi(2.0, 1.0, 30.0)
    for outcome in decode(LINK, LARGE, synthetic_models(), payload, methods=(kind,)):
        for r in outcome.record.rounds:
            modelled = "rejection" if payload == REJECTION else kind
            cost = protocol(modelled).cost(r.drafted, r.queried, sizes, csi)
            assert r.link_s == pytest.approx(cost.latency_s, abs=2e-5)  # whole bytes
            assert abs(r.uplink_bytes - cost.uplink_bits / 8) <= 2
            assert abs(r.downlink_bytes - cost.downlink_bits / 8) <= 2
            first_s = 20 * 0.001 if r.round == 0 else 0.0
            assert r.draft_s == pytest.approx(0.002 + 0.01 * r.drafted + first_s)
            assert r.verify_s == pytest.approx(0.03 + 0.004 * r.drafted)
            assert r.queue_s == r.judge_s == 0
        parts = sum(sum(getattr(r, part) for part in PARTS) for r in outcome.record.rounds)
        opening_s = 8 * 20 * 15 / 2e6 / 8  # the prompt goes up before the first window
        assert outcome.record.latency_s == pytest.approx(parts, abs=opening_s + 1e-6)


@pytest.mark.parametrize("kind", ["fh", "sh"])
@pytest.mark.parametrize(("bits", "vector_bits"), [(8, 8016), (4, 4016)])
def test_quantised_states_cost_their_bits_and_their_scale(kind: str, bits: int, vector_bits: int) -> None:
    outcomes = decode(LINK, LARGE, synthetic_models(), methods=(kind,), hidden_bits=bits)
    assert all(o.lossless for o in outcomes)
    for r in [r for o in outcomes for r in o.record.rounds]:
        vectors = r.drafted if kind == "fh" else r.queried
        up_bits = r.drafted * 15 + vectors * vector_bits
        assert abs(r.uplink_bytes - up_bits / 8) <= 2
        exchanges = 1 + (r.queried > 0)
        assert r.link_s == pytest.approx(up_bits / 2e6 + 8 * r.downlink_bytes / 1e6 + exchanges * 0.03, abs=2e-5)


def test_auto_reckons_with_the_sizes_that_travel() -> None:
    # d = 1000 at 2 Mbit/s: seven vectors more than one take 56 ms at 16 bits and 14 ms at 4, a round trip 30 ms
    for bits, kind in ((16, "sh"), (4, "fh")):
        how = {"methods": ("auto",), "auto_rule": "latency", "hidden_bits": bits}
        rounds = [r for o in decode(LINK, LARGE, synthetic_models(), **how) for r in o.record.rounds]
        assert {r.protocol for r in rounds} == {kind}


@pytest.mark.parametrize("kind", ["fh", "sh"])
def test_judging_takes_the_heads_time(kind: str) -> None:
    head = HeadCost(drafter_hidden=60, target_hidden=35, width=10, peak_flops=4e6, utilisation=0.5)
    assert head.position_s == pytest.approx(2 * (100 * 10 + 10) / 2e6)
    profile = msgspec.structs.replace(BARE, head=head)
    judge = HeadJudge(random_head())
    outcomes = decode(LINK, profile, synthetic_models(), OWN, judge, methods=(kind,), threshold=0.5)
    rounds = [r for o in outcomes for r in o.record.rounds]
    assert all(r.judge_s == pytest.approx(r.candidates * head.position_s) for r in rounds)
    assert sum(r.candidates for r in rounds) > 10
    fast = msgspec.structs.replace(profile, head=msgspec.structs.replace(head, peak_flops=4e18))
    again = decode(LINK, fast, synthetic_models(), OWN, HeadJudge(random_head()), methods=(kind,), threshold=0.5)
    longer_s = sum(o.record.latency_s for o in outcomes) - sum(o.record.latency_s for o in again)
    assert longer_s == pytest.approx(sum(r.judge_s for r in rounds))


def test_without_sizes_the_frames_themselves_travel() -> None:
    sizes = Sizes(64)
    for outcome in decode(LINK, BARE, synthetic_models(), methods=("fh",)):
        for r in outcome.record.rounds[1:]:
            least = protocol("fh").cost(r.drafted, 0, sizes, Csi(2.0, 1.0, 30.0))
            assert 0 <= r.uplink_bytes - least.uplink_bits / 8 <= HEADER_UP_BYTES
            assert r.downlink_bytes <= HEADER_DOWN_BYTES
            assert r.link_s == pytest.approx(8 * r.uplink_bytes / 2e6 + 8 * r.downlink_bytes / 1e6 + 0.03)


def test_target_only_pays_for_every_token_and_one_round_trip() -> None:
    (first, *_) = decode(LINK, LARGE, synthetic_models(), methods=("target-only",))
    assert first.record.latency_s == pytest.approx(60 * 0.05 + 0.03, rel=0.01)
    assert first.lossless


def test_colocated_crosses_the_link_once() -> None:
    (first, *_) = decode(LINK, BARE, synthetic_models(), methods=("colocated",))
    assert sum(r.link_s for r in first.record.rounds) == pytest.approx(0.03, abs=2e-3)
    assert first.record.rounds[0].csi is None


def test_hot_times_hold_after_short_pauses_alone() -> None:
    hot = Hot(within_s=0.1, draft=LinearDraft(per_token_s=0.001), verify=LinearVerify(base_s=0.005), stack_s=0.0)
    profile = msgspec.structs.replace(BARE, hot=hot)
    (near, *_) = decode(LINK, profile, synthetic_models(), methods=("colocated",))
    far_link = ChannelSpec(kind="virtual", uplink_mbps=2, downlink_mbps=1, rtt_ms=300)
    (far, *_) = decode(far_link, profile, synthetic_models())
    assert {round(r.verify_s, 6) for r in near.record.rounds[2:]} == {0.005}
    assert all(r.verify_s == pytest.approx(0.03 + 0.004 * r.drafted) for r in far.record.rounds)
    assert all(r.draft_s == pytest.approx(0.002 + 0.01 * r.drafted) for r in far.record.rounds[1:])


def test_the_same_arguments_give_the_same_outcomes_and_another_seed_other_errors() -> None:
    def run(seed: int) -> bytes:
        link = ChannelSpec(kind="virtual", uplink_mbps=2, downlink_mbps=1, rtt_ms=30, per=0.2, jitter_ms=3, seed=seed)
        outcomes = decode(link, BARE, synthetic_models(), methods=("fh", "sh", "target-only", "auto"), seed=4)
        return msgspec.json.encode([[o.method, o.request, o.record] for o in outcomes])

    assert run(0) == run(0) != run(1)


def test_packet_errors_stretch_the_link_as_expected_values_say() -> None:
    link = ChannelSpec(kind="virtual", uplink_mbps=2, downlink_mbps=1, rtt_ms=30, per=0.3, harq_rtt_ms=0)
    sizes = Sizes(1000, id_bits(32000), 16, 32000)
    rounds = [
        r for o in decode(link, LARGE, synthetic_models(), methods=("fh",), max_tokens=400) for r in o.record.rounds
    ]
    expected = sum(protocol("fh").cost(r.drafted, 0, sizes, Csi(2.0, 1.0, 30.0, 0.3, 0.3)).latency_s for r in rounds)
    assert len(rounds) > 200
    assert sum(r.link_s for r in rounds) == pytest.approx(expected, rel=0.02)


def test_the_synthetic_pair_accepts_at_its_rate() -> None:
    outcomes = decode(LINK, BARE, synthetic_models(0.7), window=4, max_tokens=3000)
    rounds = [r for o in outcomes for r in o.record.rounds if r.drafted == 4]
    accepted, first_rejections = sum(r.accepted for r in rounds), sum(r.accepted < 4 for r in rounds)
    assert accepted / (accepted + first_rejections) == pytest.approx(0.7, abs=0.02)
    assert all(o.lossless for o in outcomes)


def test_the_state_rides_with_every_round() -> None:
    (first, *_) = decode(LINK, BARE, synthetic_models())
    seen = [r.csi for r in first.record.rounds]
    assert all(c and (c.uplink_mbps, c.downlink_mbps, c.rtt_ms, c.source) == (2.0, 1.0, 30.0, "emulated") for c in seen)
    walk = ChannelSpec(kind="trace", file="walk", via="virtual")
    traced = [r.csi for o in decode(walk, BARE, synthetic_models()) for r in o.record.rounds]
    trace = walk.trace()
    assert trace is not None
    for csi in traced:
        assert csi is not None
        assert csi.source == "trace"
        assert csi.uplink_mbps == trace.uplink_mbps[trace.index(csi.time_s)]
    assert len({c.uplink_mbps for c in traced if c}) > 5


def test_auto_says_why() -> None:
    for rtt_ms, kind in ((4, "sh"), (30, "fh")):
        link = ChannelSpec(kind="virtual", uplink_mbps=2, downlink_mbps=1, rtt_ms=rtt_ms)
        rounds = [r for o in decode(link, BARE, synthetic_models(), methods=("auto",)) for r in o.record.rounds]
        assert {r.protocol for r in rounds} == {kind}
        assert all(r.choice.startswith("RTT ") for r in rounds)
    rounds = [
        r
        for o in decode(LINK, BARE, synthetic_models(0.99), methods=("auto",), auto_rule="latency")
        for r in o.record.rounds
    ]
    assert rounds[0].choice.startswith("fh ")
    assert "sh" in {r.protocol for r in rounds}  # hardly anything mismatches: the second exchange is seldom needed


def test_a_pass_by_hand() -> None:
    assert BARE.verify.pass_s([PassWork(8, 9, 100), PassWork(0, 1, 5)]) == pytest.approx(0.03 + 0.032 + 0.02)
    assert BARE.sizes is None
