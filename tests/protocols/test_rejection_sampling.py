"""Rejection sampling, whole and split: continuations are distributed as the target's own, and what may not travel."""

from __future__ import annotations

import functools
import math
from collections import Counter

import numpy as np
import pytest

from testbed.bs.engines.base import VerifyRequest
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.channel.cost import Payload, Sizes
from testbed.channel.csi import Csi
from testbed.errors import BadInput, ProtocolError
from testbed.protocols import protocol, rejection_sampling
from testbed.protocols.base import HEADER_DOWN_BYTES, HEADER_UP_BYTES, Drafted
from testbed.protocols.codec import MAX_ARRAY_BYTES, AnyArray, encode
from testbed.protocols.messages import Draft, Verdict
from testbed.protocols.sampling import GREEDY, ONE, Draws, Sampling, pack_target, quantise
from testbed.ue.drafters.synthetic import SyntheticDrafter
from tests.support.sampled import Ids, chances, continuation, p_value, sample

KINDS = ("rejection", "split")
VOCAB, PROMPT = 5, (3, 1, 4)
ENGINE = SyntheticEngine(vocab_size=VOCAB)
DRAFTER = SyntheticDrafter(vocab_size=VOCAB, alpha=0.3)


@functools.cache
def target(prefix: Ids) -> AnyArray:
    request = VerifyRequest("s", np.array(prefix, np.int32), np.zeros(0, np.int32), logprobs=True)
    logprobs = ENGINE.verify([request])[0].logprobs
    assert logprobs is not None
    return logprobs[0]


@functools.cache
def drafter(prefix: Ids) -> AnyArray:
    probs = DRAFTER.predict(prefix, True).probs
    assert probs is not None
    return probs


# ---------------------------------------------------------------- the target's distribution


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("sampling", "count"),
    [
        (Sampling(1.0), 8000),
        pytest.param(Sampling(0.5), 3000, marks=pytest.mark.long),
        pytest.param(Sampling(2.5), 3000, marks=pytest.mark.long),
        pytest.param(Sampling(1.5, top_k=3), 3000, marks=pytest.mark.long),
        pytest.param(Sampling(2.0, top_p=0.85), 3000, marks=pytest.mark.long),
        (Sampling(1.3, top_k=4, top_p=0.9), 3000),
    ],
)
def test_continuations_are_distributed_as_the_targets_own(kind: str, sampling: Sampling, count: int) -> None:
    expected = chances(target, PROMPT, sampling, 3)
    assert math.isclose(math.fsum(expected.values()), 1)
    counts = sample(kind, target, drafter, PROMPT, sampling, count=count, length=3, window=2)
    assert p_value(counts, expected) > 1e-4
    # The empirical distribution lies as near as that many draws must: E[TV] <= sqrt(cells / count) / 2.
    distance = 0.5 * sum(abs(counts[ids] / count - chance) for ids, chance in expected.items())
    cells = sum(chance > 0 for chance in expected.values())
    assert distance < 0.5 * math.sqrt(cells / count) + math.sqrt(math.log(1e4) / (2 * count))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [1, 4])
def test_the_window_does_not_matter(kind: str, window: int) -> None:
    counts = sample(kind, target, drafter, PROMPT, Sampling(), count=3000, length=4, window=window)
    assert p_value(counts, chances(target, PROMPT, Sampling(), 4)) > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_a_replacement_from_the_target_itself_would_be_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """WISP Eq. 3 as printed: the test above must tell it from the residual."""
    monkeypatch.setattr(rejection_sampling, "residual", lambda p, q: p)
    counts = sample(kind, target, drafter, PROMPT, Sampling(), count=3000, length=3, window=2)
    assert p_value(counts, chances(target, PROMPT, Sampling(), 3)) < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_that_draws_from_something_else_than_it_uploads_would_be_noticed(kind: str) -> None:
    def flat(prefix: Ids) -> AnyArray:
        return np.full(VOCAB, 1 / VOCAB, np.float32)

    class Lying(type(protocol(kind))):  # type: ignore[misc]
        def uplink(self, drafted: Drafted) -> dict[str, AnyArray]:
            rows = [quantise(drafter(PROMPT).astype(np.float64)) for _ in drafted.ids]
            return super().uplink(drafted._replace(q=np.stack(rows)))

    counts: Counter[Ids] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.support.sampled.protocol", lambda _: Lying())
        counts = sample(kind, target, flat, PROMPT, Sampling(), count=3000, length=3, window=2)
    assert p_value(counts, chances(target, PROMPT, Sampling(), 3)) < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_without_temperature_the_output_is_greedy(kind: str) -> None:
    own: Ids = ()
    for _ in range(20):
        own += (int(target(PROMPT + own).argmax()),)
    for seed in range(5):
        assert continuation(kind, target, drafter, PROMPT, GREEDY, seed, 20, 4) == own


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_one_continuation(kind: str) -> None:
    outputs = [continuation(kind, target, drafter, PROMPT, Sampling(), seed, 12, 3) for seed in (1, 1, 2, 3)]
    assert outputs[0] == outputs[1]
    assert len(set(outputs)) == 3


def test_a_good_drafter_is_kept_always_and_one_that_never_agrees_never() -> None:
    q = quantise(np.array([0.5, 0.25, 0.25, 0.0]))
    certain = np.array([0.0, 0.0, 0.0, 1.0])
    ids = np.array([0, 1], np.int32)
    for kind in KINDS:
        window = protocol(kind).window(
            protocol(kind).uplink(Drafted(ids, np.zeros((2, 1), np.float16), np.stack([q, q]))), 1
        )
        for round_ in range(50):
            kept = protocol(kind).keep(window, lambda _: q / ONE, Draws(0, round_))
            assert kept.accepted == 2 or kind == "split"  # whose target is rounded
            kept = protocol(kind).keep(window, lambda _: certain, Draws(0, round_))
            assert kept.accepted == 0
            assert (kept.token, kept.target is None) == ((3, True) if kind == "rejection" else (None, False))


# ---------------------------------------------------------------- what travels

LLAMA = Sizes(hidden_size=2048, id_bits=17, vocab_size=128256)


def test_payloads_by_hand() -> None:
    # K = 8: 8 * (17 + 16 * 128256) = 16,416,904 up; 4 + 17 down
    assert protocol("rejection").payload(8, 0, LLAMA) == Payload(16_416_904, 21, 1, 1)
    # 8 * (17 + 16) = 264 up; 21 down, and 16 * 128256 = 2,052,096 more after a rejection
    assert protocol("split").payload(8, 0, LLAMA) == Payload(264, 21, 1, 1)
    assert protocol("split").payload(8, 1, LLAMA) == Payload(264, 2_052_117, 1, 1)
    cost = protocol("split").cost(8, 1, LLAMA, Csi(20.0, 20.0, 50.0))
    assert cost.latency_s == pytest.approx((264 + 2_052_117) / 20e6 + 0.05)


ROW = quantise(np.array([0.5, 0.3, 0.2]))
DRAFTED = Drafted(np.array([0, 2], np.int32), np.zeros((2, 1), np.float16), np.stack([ROW, ROW]))


def test_what_goes_up() -> None:
    whole = protocol("rejection").uplink(DRAFTED)
    assert list(whole) == ["ids", "q"] and whole["q"].tolist() == [ROW.tolist()] * 2
    some = protocol("split").uplink(DRAFTED)
    assert list(some) == ["ids", "q"] and some["q"].tolist() == [ROW[0], ROW[2]]
    owing = protocol("split").uplink(DRAFTED._replace(replaced=7))
    assert owing["token"].tolist() == [7] and list(owing) == ["ids", "q", "token"]
    for kind in KINDS:
        with pytest.raises(ProtocolError, match="needs the drafter's distributions"):
            protocol(kind).uplink(DRAFTED._replace(q=None))


def test_frames_take_the_stated_bits_and_headers_keep_within_their_bounds() -> None:
    ids, large = np.zeros(256, np.int32), 2**32 - 1
    drafted = Drafted(ids, np.zeros((256, 1), np.float16), np.zeros((256, 70000), np.uint16), replaced=3)
    state = Csi(1 / 3, 1 / 7, 0.1, 1e-9, 1e-9, snr_db=1 / 3, rssi_dbm=-1 / 3, time_s=1 / 3, source="emulated")
    draft = Draft(session=large, round=large, base_len=large, csi=state)
    sizes = Sizes(hidden_size=1, vocab_size=70000)
    for kind in KINDS:
        header, *frames = encode(draft, protocol(kind).uplink(drafted))
        bits = 8 * sum(map(len, frames)) - protocol(kind).payload(256, 1, sizes).uplink_bits
        assert bits == (0 if kind == "rejection" else 32)  # the token that the UE drew
        assert len(header) + bits // 8 <= HEADER_UP_BYTES
    verdict = Verdict(
        session=large, round=large, accepted=256, token=-1, candidates=256, queried=1, gap=0.1, batch_size=1024,
        queue_s=0.1, verify_s=0.1, judge_s=0.1, bs_s=0.1,
    )  # fmt: skip
    header, frame = encode(verdict, {"target": pack_target(np.full(70000, 1 / 70000))})
    assert 8 * len(frame) == 16 * 70000 and len(header) <= HEADER_DOWN_BYTES


def test_a_window_too_large_for_an_array_is_refused_before_it_is_sent() -> None:
    rows = MAX_ARRAY_BYTES // (2 * 150_000) + 1
    drafted = Drafted(np.zeros(rows, np.int32), np.zeros((rows, 1), np.float16), np.zeros((rows, 150_000), np.uint16))
    with pytest.raises(BadInput, match=f"use --window {rows - 1} or less"):
        protocol("rejection").uplink(drafted)


IDS, Q = DRAFTED.ids, np.stack([ROW, ROW])
NONE_LEFT = np.array([[ONE, 0, 0], [ONE, 0, 0]], np.uint16)


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"ids": IDS}, "expected the arrays ids, q; got ids"),
        ({"ids": IDS, "q": Q, "token": IDS[:1]}, "got ids, q, token"),
        ({"ids": IDS.astype(np.float32), "q": Q}, "ids must be"),
        ({"ids": IDS, "q": Q[:1]}, r"q must be u2 \[2, V\], not uint16 \[1, 3\]"),
        ({"ids": IDS, "q": Q[0]}, "q must be u2"),
        ({"ids": IDS, "q": Q.astype(np.float16)}, "not float16"),
        ({"ids": IDS, "q": Q[:, :2]}, "token ids must lie in 0..1"),
        ({"ids": -IDS, "q": Q}, "token ids must lie in 0..2"),
        ({"ids": IDS, "q": Q - np.uint16(1)}, "add up to 65535"),
        ({"ids": IDS, "q": np.zeros((2, 3), np.uint16)}, "add up to 65535"),
        ({"ids": IDS, "q": np.zeros((2, 0), np.uint16)}, "token ids"),
        ({"ids": IDS, "q": NONE_LEFT}, "must have a probability"),
    ],
)
def test_windows_with_distributions_that_are_not(arrays: dict[str, AnyArray], reason: str) -> None:
    assert protocol("rejection").window({"ids": IDS, "q": Q}, 3).q is not None
    with pytest.raises(ProtocolError, match=reason):
        protocol("rejection").window(arrays, 3)


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"ids": IDS}, "expected the arrays ids, q; got ids"),
        ({"ids": IDS, "q": Q}, r"q must be u2 \[2\], not uint16 \[2, 3\]"),
        ({"ids": IDS, "q": Q[0, :1]}, "q must be u2"),
        ({"ids": IDS, "q": IDS}, "not int32"),
        ({"ids": IDS, "q": np.array([1, 0], np.uint16)}, "must have a probability"),
        ({"ids": IDS, "q": Q[:, 0], "token": IDS}, "token must be i4"),
        ({"ids": IDS, "q": Q[:, 0], "token": Q[0, :1]}, "token must be i4"),
        ({"ids": IDS, "q": Q[:, 0], "hidden": IDS}, "got hidden, ids, q"),
    ],
)
def test_windows_with_probabilities_that_are_not(arrays: dict[str, AnyArray], reason: str) -> None:
    window = protocol("split").window({"ids": IDS, "q": Q[:, 0], "token": IDS[:1]}, 3)
    assert window.token == 0 and window.hidden is None
    with pytest.raises(ProtocolError, match=reason):
        protocol("split").window(arrays, 3)


def test_the_ue_draws_only_where_the_protocol_has_it_draw() -> None:
    arrays, draws = {"target": pack_target(np.array([0.0, 0.0, 1.0]))}, Draws(0, 0)
    assert protocol("split").replace(DRAFTED, 0, arrays, draws) == 2
    for kind in ("greedy", "fh", "rejection"):
        with pytest.raises(ProtocolError, match="draws no tokens at the UE"):
            protocol(kind).replace(DRAFTED, 0, arrays, draws)
    with pytest.raises(ProtocolError, match="nothing was rejected"):
        protocol("split").replace(DRAFTED, 2, arrays, draws)
    with pytest.raises(ProtocolError, match="expected the arrays target"):
        protocol("split").replace(DRAFTED, 0, {**arrays, "more": IDS}, draws)
    with pytest.raises(ProtocolError, match="target must be"):
        protocol("split").replace(DRAFTED, 0, {"target": arrays["target"][:2]}, draws)
    with pytest.raises(ProtocolError, match="greedy draws no tokens"):
        protocol("greedy").keep(protocol("greedy").window({"ids": IDS}, 1), lambda _: np.ones(1), draws)
