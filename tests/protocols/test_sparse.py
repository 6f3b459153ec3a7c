"""Sparse and coarse draft distributions: on the wire and back, the target's distribution, and what is refused."""

from __future__ import annotations

import functools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.intake import Intake, Offer
from testbed.bs.sessions import SessionTable
from testbed.channel.cost import NO_OVERHEADS, Sizes
from testbed.config import RunConfig
from testbed.errors import BadInput, ProtocolError
from testbed.experiments.inputs.payloads import sizers
from testbed.protocols import protocol
from testbed.protocols.base import Drafted
from testbed.protocols.codec import AnyArray, encode, pack_bits, unpack_bits
from testbed.protocols.messages import Draft, Open
from testbed.protocols.methods import run_method
from testbed.protocols.quantise import MOST_ENTRIES, pack_q, unpack_q
from testbed.protocols.sampling import GREEDY, ONE, Q_BITS, Counts, Sampling, quantise, unit
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.run import sampling_of
from tests.support.sampled import Ids, chances, continuation, p_value, rows, sample

KINDS = ("rejection", "split")
VOCAB, PROMPT = 5, (3, 1, 4)
target = rows(SyntheticEngine(vocab_size=VOCAB))
BITS = st.sampled_from(Q_BITS)


@functools.cache
def drafter(prefix: Ids) -> AnyArray:
    probs = SyntheticDrafter(vocab_size=VOCAB, alpha=0.3).predict(prefix, True).probs
    assert probs is not None
    return probs


def window(seed: int, length: int, vocab: int, sampling: Sampling) -> Drafted:
    """Drafted tokens with random distributions."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(vocab, rng.choice([0.05, 1.0])), length) + 1e-12
    q = [quantise(row, sampling.q_top, sampling.q_bits) for row in probs]
    ids = [int(rng.choice(vocab, p=row / ONE)) for row in q]
    hidden = np.zeros((length, 1), np.float16)
    return Drafted(np.array(ids, np.int32), hidden, np.array(q, np.uint16).reshape(length, vocab))


# ---------------------------------------------------------------- rounding


@given(st.integers(0, 2**32), st.integers(1, 300), st.integers(0, 40), BITS)
def test_rounded_distributions(seed: int, size: int, top: int, bits: int) -> None:
    p = np.random.default_rng(seed).dirichlet(np.full(size, 0.3)) + 1e-15
    p[0] = 0.0 if size > 1 else 1.0
    p /= p.sum()
    counts = quantise(p, top, bits)
    assert counts.sum(dtype=np.int64) == ONE and (counts % unit(bits) == 0).all()
    assert (counts[p == 0] == 0).all()
    kept = np.sort(p)[::-1][: top or size]
    assert np.count_nonzero(counts) <= len(kept) and p[counts > 0].min() >= kept[-1]
    chosen = np.where(p >= kept[-1], p, 0) / kept.sum()
    assert np.abs(counts / ONE - chosen).max() < 1 / (2**bits - 1) + 1e-9


def test_counts_by_hand() -> None:
    assert [unit(bits) for bits in Q_BITS] == [1, 257, 4369]
    # of 15: 7.5, 4.5, 3: the remainders are equal, and the lower id takes the one that is missing
    assert (quantise(np.array([0.5, 0.3, 0.2]), bits=4) // 4369).tolist() == [8, 4, 3]
    # 0.5 and 0.3 alone: 9.375, 5.625
    assert (quantise(np.array([0.3, 0.2, 0.5]), top=2, bits=4) // 4369).tolist() == [6, 0, 9]


# ---------------------------------------------------------------- on the wire


@given(st.integers(0, 2**32), st.integers(0, 5), st.integers(1, 70), st.integers(0, 80), BITS)
def test_what_is_packed_arrives_in_the_stated_bits(seed: int, length: int, vocab: int, top: int, bits: int) -> None:
    sampling = Sampling(q_top=top, q_bits=bits)
    drafted = window(seed, length, vocab, sampling)
    assert drafted.q is not None
    sizes = Sizes(hidden_size=1, vocab_size=vocab, q_top=top, q_bits=bits)
    for kind in KINDS:
        one = protocol(kind)
        sent = pack_q(one.uplink(drafted), sampling)
        padding = 8 * sum(array.nbytes for array in sent.values()) - one.payload(length, 0, sizes).uplink_bits
        assert 0 <= padding < 8
        found = one.window(unpack_q(dict(sent), sampling, vocab, not one.replaces), 1)
        assert found.ids.tolist() == drafted.ids.tolist() and found.q is not None
        dense: Counts = np.zeros((length, vocab), np.uint16)
        if kind == "split":
            assert found.q.tolist() == [row[i] for row, i in zip(drafted.q, drafted.ids, strict=True)]
        elif found.top is None:
            assert np.array_equal(found.q, drafted.q)
        else:
            np.put_along_axis(dense, found.top.astype(np.int64), found.q, axis=1)
            assert np.array_equal(dense, drafted.q)


def test_an_entry_by_hand() -> None:
    """An id of 5 takes 3 bits: 1 with 5/15 and 4 with 10/15 give 001 0101 100 1010, and two bits of padding."""
    sampling = Sampling(q_top=2, q_bits=4)
    q = np.array([[0, 5, 0, 0, 10]], np.uint16) * np.uint16(4369)
    sent = pack_q({"ids": np.array([4], np.int32), "q": q}, sampling)
    assert [f"{byte:08b}" for byte in sent["q"]] == ["00101011", "00101000"]
    certain = pack_q({"ids": np.array([4], np.int32), "q": np.array([[0, 0, 0, 0, ONE]], np.uint16)}, sampling)
    assert [f"{byte:08b}" for byte in certain["q"]] == ["00000001", "00111100"]  # id 0 with nothing, then id 4


@given(st.integers(0, 2**32), st.integers(0, 40), st.integers(1, 40))
def test_numbers_of_any_width(seed: int, count: int, width: int) -> None:
    numbers = np.random.default_rng(seed).integers(0, 2**width, count)
    packed = pack_bits(numbers, width)
    assert "".join(f"{n:0{width}b}" for n in numbers) == "".join(f"{b:08b}" for b in packed)[: count * width]
    assert unpack_bits(packed, count, width).tolist() == numbers.tolist()


IDS = np.array([1, 4], np.int32)
TOP = Sampling(q_top=2, q_bits=4)


def entries(*pairs: tuple[int, int]) -> AnyArray:
    return pack_bits(np.array([i << 4 | count for i, count in pairs]), 3 + 4)


GOOD = entries((1, 5), (4, 10), (0, 8), (4, 7))


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"ids": IDS}, "expected the arrays ids, q; got ids"),
        ({"ids": IDS, "q": GOOD, "top": IDS}, "no array top"),
        ({"ids": IDS, "q": GOOD[:-1]}, "4 numbers of 7 bits do not fit"),
        ({"ids": IDS, "q": GOOD.astype(np.uint16)}, "do not fit"),
        ({"ids": IDS, "q": GOOD | np.uint8(1)}, "padding must be 0"),
        ({"ids": IDS, "q": entries((4, 5), (1, 10), (0, 8), (4, 7))}, "ids of q must increase and lie in 0..4"),
        ({"ids": IDS, "q": entries((1, 5), (1, 10), (0, 8), (4, 7))}, "must increase"),
        ({"ids": IDS, "q": entries((1, 5), (5, 10), (0, 8), (4, 7))}, "must increase and lie in 0..4"),
        ({"ids": IDS, "q": entries((1, 5), (4, 9), (0, 8), (4, 7))}, "add up to 65535"),
        ({"ids": IDS, "q": entries((1, 5), (4, 10), (0, 8), (3, 7))}, "must have a probability"),
        ({"ids": IDS, "q": entries((1, 0), (4, 15), (0, 8), (4, 7))}, "must have a probability"),
        ({"ids": -IDS, "q": GOOD}, "must have a probability"),
        ({"ids": np.zeros(MOST_ENTRIES, np.int32), "q": GOOD}, "at most 65536 entries"),
    ],
)
def test_sparse_windows_that_are_not(arrays: dict[str, AnyArray], reason: str) -> None:
    def read(arrays: dict[str, AnyArray]) -> AnyArray | None:
        return protocol("rejection").window(unpack_q(arrays, TOP, VOCAB, True), 1).top

    found = read({"ids": IDS, "q": GOOD})
    assert found is not None and found.tolist() == [[1, 4], [0, 4]]
    with pytest.raises(ProtocolError, match=reason):
        read(arrays)


def test_a_window_with_too_many_entries_is_refused_before_it_is_sent() -> None:
    q = np.full((257, 300), 1, np.uint16)
    with pytest.raises(BadInput, match="use --window 256 or less"):
        pack_q({"ids": np.zeros(257, np.int32), "q": q}, Sampling(q_top=256))


def test_messages_in_virtual_time_have_the_stated_sizes() -> None:
    """8 tokens of 128,256 ids: 32 bits each, and 16 entries of 17 + 8 bits."""
    up, _ = sizers(Sizes(hidden_size=1, vocab_size=128_256), NO_OVERHEADS)
    opening = Open(session=1, protocol="rejection", threshold=0.0, hidden_size=1, q_top=16, q_bits=8)
    up(encode(opening, {"ids": np.array([1], np.int32)}))
    draft = Draft(session=1, round=0, base_len=1)
    assert up(encode(draft, {"ids": np.zeros(8, np.int32)})) == 8 * (32 + 16 * 25) // 8
    up(encode(Open(session=2, protocol="rejection", threshold=0.0, hidden_size=1), {"ids": np.array([1], np.int32)}))
    other = Draft(session=2, round=0, base_len=1)
    assert up(encode(other, {"ids": np.zeros(8, np.int32)})) == 8 * (32 + 16 * 128_256) // 8


# ---------------------------------------------------------------- the target's distribution


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "form", [*(pytest.param(form, marks=pytest.mark.long) for form in ((2, 16), (0, 4))), (3, 8), (1, 4)], ids=str
)
def test_continuations_are_distributed_as_the_targets_own(kind: str, form: tuple[int, int]) -> None:
    sampling = Sampling(1.3, q_top=form[0], q_bits=form[1])
    counts = sample(kind, target, drafter, PROMPT, sampling, count=3000, length=3, window=2)
    assert p_value(counts, chances(target, PROMPT, sampling, 3)) > 1e-4


def test_with_block_verification_too() -> None:
    sampling = Sampling(1.3, block=True, q_top=3, q_bits=4)
    counts = sample("rejection", target, drafter, PROMPT, sampling, count=2000, length=3, window=3)
    assert p_value(counts, chances(target, PROMPT, sampling, 3)) > 1e-4


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_twenty_thousand_continuations(kind: str) -> None:
    sampling = Sampling(1.0, q_top=3, q_bits=4)
    counts = sample(kind, target, drafter, PROMPT, sampling, count=20_000, length=3, window=3)
    assert p_value(counts, chances(target, PROMPT, sampling, 3)) > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_drawn_before_rounding_would_be_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Counts] = []

    def late(probs: AnyArray, top: int = 0, bits: int = 16) -> Counts:
        drawn.append(quantise(probs))
        return quantise(probs, top, bits) + np.uint16(0)

    def before(weights: AnyArray, u: float) -> int:
        return int(np.searchsorted(np.cumsum(drawn[-1], dtype=np.float64), u * ONE, side="right"))

    monkeypatch.setattr("testbed.ue.drafters.sampler.quantise", late)
    monkeypatch.setattr("testbed.ue.drafters.sampler.draw", before)
    sampling = Sampling(1.0, q_bits=4)

    def distributed() -> None:
        counts = sample(kind, target, drafter, PROMPT, sampling, count=3000, length=3, window=2)
        assert p_value(counts, chances(target, PROMPT, sampling, 3)) > 1e-4

    with pytest.raises((ProtocolError, AssertionError)):  # a token without a probability, or another distribution
        distributed()


def test_without_temperature_the_output_is_greedy_and_takes_one_entry() -> None:
    own: Ids = ()
    for _ in range(12):
        own += (int(target(PROMPT + own).argmax()),)
    for kind in KINDS:
        assert continuation(kind, target, drafter, PROMPT, Sampling(0.0, q_top=1, q_bits=4), 1, 12, 4) == own


# ---------------------------------------------------------------- where it applies


def test_which_methods_upload_distributions() -> None:
    asked = Sampling(0.7, q_top=4, q_bits=8)
    for kind in KINDS:
        assert run_method(kind).sampling(asked) == asked
        assert run_method(kind).sampling(Sampling(0.0, q_top=4, q_bits=8)) == Sampling(0.0, q_top=4, q_bits=8)
    assert run_method("target-only").sampling(asked) == Sampling(0.7)
    assert run_method("coupled").sampling(asked) == Sampling(0.7, coupled=True)
    assert run_method("greedy").sampling(asked) == GREEDY


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"methods": ("greedy",), "q_top": 4}, "q-top and q-bits are for rejection, split, not for greedy"),
        ({"methods": ("target-only",), "q_bits": 8}, "q-top and q-bits are for rejection, split"),
        ({"methods": ("split",), "q_bits": 12}, "probabilities travel at 16, 8, 4 bits, not 12"),
        ({"methods": ("split",), "q_top": 257}, "must lie in 0..256"),
    ],
)
def test_options_that_cannot_be(config: dict[str, object], reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        sampling_of(RunConfig(**config))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        ("greedy", {"q_top": 4}, "greedy uploads no draft distributions"),
        ("target-only", {"q_bits": 8, "max_tokens": 3}, "target-only uploads no draft distributions"),
        ("rejection", {"q_bits": 5}, "not 5"),
        ("rejection", {"q_bits": 17}, "q_bits must lie in"),
        ("rejection", {"q_top": 257}, "q_top must lie in 0..256, not 257"),
    ],
)
def test_a_base_station_refuses_what_it_cannot_unpack(kind: str, fields: dict[str, int], reason: str) -> None:
    intake = Intake(Offer("synthetic", "", VOCAB, 64, (), 4096), SessionTable())
    message = Open(session=1, protocol=kind, threshold=0.0, hidden_size=64, **fields)  # type: ignore[arg-type]
    with pytest.raises((BadInput, ProtocolError), match=reason):
        intake.open(b"ue", message, {"ids": np.array([1], np.int32)})


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
def test_whole_distributions_are_unpacked_without_copies(bits: int) -> None:
    """A broadcast over the numbers of a byte, with its copies, stopped the event loop at large vocabularies."""
    packed = np.full(2**16, 0xA5, np.uint8)
    tracemalloc.start()
    try:
        numbers = unpack_bits(packed, 2**16 * 8 // bits, bits)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.1 * numbers.nbytes
    assert np.array_equal(pack_bits(numbers, bits), packed)
    assert numbers[: 8 // bits].tolist() == {8: [0xA5], 4: [10, 5], 2: [2, 2, 1, 1], 1: [1, 0, 1, 0, 0, 1, 0, 1]}[bits]
