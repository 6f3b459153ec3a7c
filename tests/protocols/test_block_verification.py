"""Block verification, by exact enumeration on small vocabularies and by a chi-square test over the wire."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.intake import Intake, Offer
from testbed.bs.sessions import SessionTable
from testbed.config import DemoConfig, RunConfig
from testbed.errors import BadInput, ProtocolError
from testbed.experiments.runs.demo import check_demo
from testbed.protocols import PROTOCOLS, protocol
from testbed.protocols.base import Steps, Window, whole
from testbed.protocols.messages import Open
from testbed.protocols.methods import run_method
from testbed.protocols.rejection_sampling import accept_block
from testbed.protocols.sampling import GREEDY, Draws, Sampling, quantise
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.run import sampling_of
from tests.support.sampled import Ids, chances, continuation, p_value, rows, sample

VOCAB, PROMPT = 5, (3, 1, 4)
BLOCK = Sampling(1.0, block=True)
Model = Callable[[Ids], NDArray[np.float64]]
Outcome = tuple[int, NDArray[np.float64], float]
"""Accepted tokens, weights of the token after them, and the probability of both given the window."""
target = rows(SyntheticEngine(vocab_size=VOCAB))


@functools.cache
def drafter(prefix: Ids) -> NDArray[np.float32]:
    probs = SyntheticDrafter(vocab_size=VOCAB, alpha=0.3).predict(prefix, True).probs
    assert probs is not None
    return probs


# ---------------------------------------------------------------- exact, on trees of random distributions


def model(seed: int, purpose: int, vocab: int) -> Model:
    """A distribution after each prefix, some entries 0."""

    @functools.cache
    def after(prefix: Ids) -> NDArray[np.float64]:
        rng = np.random.default_rng((seed, purpose, *prefix, len(prefix)))
        weights = rng.dirichlet(np.full(vocab, rng.choice([0.2, 1.0, 5.0])))
        weights[(rng.random(vocab) < 0.2) & (weights < weights.max())] = 0.0
        return weights / weights.sum()

    return after


class Told(float):
    """A number that is not below a probability, and remembers it."""

    chance: float

    def __lt__(self, chance: float) -> bool:
        self.chance = chance
        return False


def outcomes(ids: Ids, q: Model, p: Model) -> Iterator[Outcome]:
    """All outcomes of block verification of one window."""

    def verified(accepted: Callable[[int], float]) -> tuple[int, NDArray[np.float64]]:
        return whole(accept_block(ids, lambda i: q(ids[:i]), lambda i: p(ids[:i]), accepted))

    told = [Told() for _ in ids]
    verified(lambda position: told[position])
    left = 1.0
    for stays in range(len(ids), 0, -1):
        if chance := told[stays - 1].chance:
            count, weights = verified(lambda position, last=stays - 1: 0.0 if position == last else 2.0)
            assert count == stays
            yield stays, weights / weights.sum(), left * chance
        left *= 1 - chance
    if left > 1e-12:
        count, weights = verified(lambda position: 2.0)
        assert count == 0
        yield 0, weights / weights.sum(), left


def windows(q: Model, vocab: int, length: int, ends: Callable[[Ids], bool]) -> Iterator[tuple[Ids, float]]:
    """All windows of a drafter that stops after `length` tokens or where `ends` says so, and their probabilities."""
    for ids in itertools.product(range(vocab), repeat=length):
        stop = next((n for n in range(1, length) if ends(ids[:n])), length)
        if all(token == 0 for token in ids[stop:]):
            chance = math.prod(float(q(ids[:i])[ids[i]]) for i in range(stop))
            if chance:
                yield ids[:stop], chance


@given(st.integers(0, 2**32), st.integers(2, 4), st.integers(1, 4), st.booleans())
def test_a_round_is_distributed_as_the_targets_own_output_and_is_as_long_as_can_be(
    seed: int, vocab: int, length: int, ends: bool
) -> None:
    q, p = model(seed, 0, vocab), model(seed, 1, vocab)

    def own(ids: Ids) -> float:
        return math.prod(float(p(ids[:i])[token]) for i, token in enumerate(ids))

    found: Counter[Ids] = Counter()  # type: ignore[type-arg]
    expected = bound = token_wise = 0.0
    for ids, drawn in windows(q, vocab, length, lambda ids: ends and ids[-1] == 0):
        share = kept = 1.0
        for i, token in enumerate(ids):
            ratio = float(p(ids[:i])[token]) / float(q(ids[:i])[token])
            share, kept = min(1.0, share * ratio), kept * min(1.0, ratio)
            bound, token_wise = bound + drawn * share, token_wise + drawn * kept
        for stays, after, chance in outcomes(ids, q, p):
            expected += drawn * chance * stays
            for rest in itertools.product(range(vocab), repeat=length - stays):
                output = (*ids[:stays], *rest)
                later = math.prod(float(p(output[:i])[output[i]]) for i in range(stays + 1, length))
                found[output] += drawn * chance * (float(after[rest[0]]) * later if rest else 1.0)
    for output in itertools.product(range(vocab), repeat=length):
        assert found[output] == pytest.approx(own(output), abs=1e-9)
    assert expected == pytest.approx(bound, abs=1e-9)
    assert expected >= token_wise - 1e-9
    if length == 1:
        assert expected == pytest.approx(token_wise, abs=1e-9)


def test_two_tokens_by_hand() -> None:
    """The example of Sun et al.: p = (1/3, 2/3), q = (2/3, 1/3); 11/9 tokens are accepted, token by token 10/9."""
    p, q = np.array([1 / 3, 2 / 3]), np.array([2 / 3, 1 / 3])
    expected = 0.0
    for ids in itertools.product(range(2), repeat=2):
        drawn = float(q[list(ids)].prod())
        expected += sum(drawn * chance * stays for stays, _, chance in outcomes(ids, lambda _: q, lambda _: p))
    assert expected == pytest.approx(11 / 9)


# ---------------------------------------------------------------- over the wire


@pytest.mark.parametrize(
    ("sampling", "window"), [(BLOCK, 1), (BLOCK, 3), (Sampling(1.7, top_k=4, top_p=0.9, block=True), 2)]
)
def test_continuations_are_distributed_as_the_targets_own(sampling: Sampling, window: int) -> None:
    counts = sample("rejection", target, drafter, PROMPT, sampling, count=2000, length=3, window=window)
    assert p_value(counts, chances(target, PROMPT, sampling, 3)) > 1e-4


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_twenty_thousand_continuations() -> None:
    counts = sample("rejection", target, drafter, PROMPT, BLOCK, count=20_000, length=3, window=3)
    assert p_value(counts, chances(target, PROMPT, BLOCK, 3)) > 1e-4


def test_a_correction_from_elsewhere_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A correction that is not drawn from the residual must fail the test above."""

    def careless(*given: object) -> Steps[tuple[int, NDArray[np.float64]]]:
        stays, weights = yield from accept_block(*given)  # type: ignore[arg-type]
        return stays, np.ones_like(weights)

    monkeypatch.setattr("testbed.protocols.rejection_sampling.accept_block", careless)
    counts = sample("rejection", target, drafter, PROMPT, BLOCK, count=3000, length=3, window=2)
    assert p_value(counts, chances(target, PROMPT, BLOCK, 3)) < 1e-4


def test_without_temperature_the_output_is_greedy() -> None:
    own: Ids = ()
    for _ in range(12):
        own += (int(target(PROMPT + own).argmax()),)
    greedy = Sampling(0.0, block=True)
    assert continuation("rejection", target, drafter, PROMPT, greedy, 1, 12, 4) == own


def test_a_drafter_that_is_the_target_is_always_accepted() -> None:
    q = quantise(np.array([0.5, 0.25, 0.25, 0.0]))
    window = Window(np.array([0, 1], np.int32), None, np.stack([q, q]))
    kept = {protocol("rejection").keep_block(window, lambda _: q / 65535, Draws(0, r)).accepted for r in range(50)}
    assert kept == {2}


# ---------------------------------------------------------------- where it applies


def test_only_protocols_that_upload_whole_distributions_have_it() -> None:
    assert [kind for kind, one in PROTOCOLS.items() if one.blockwise] == ["rejection"]
    with pytest.raises(ProtocolError, match="split has no block verification"):
        protocol("split").keep_block(Window(np.zeros(0, np.int32), None), lambda _: np.ones(1), Draws(0, 0))
    asked = Sampling(0.7, block=True)
    assert run_method("rejection").sampling(asked) == asked
    assert {run_method(kind).sampling(asked) for kind in ("split", "target-only")} == {Sampling(0.7)}
    assert run_method("coupled").sampling(asked) == Sampling(0.7, coupled=True)
    assert {run_method(kind).sampling(asked) for kind in ("greedy", "fh", "colocated")} == {GREEDY}
    assert run_method("rejection").sampling(Sampling(0.0, block=True)) == GREEDY


def test_options_of_a_run() -> None:
    told = RunConfig(methods=("split", "rejection"), verification="block")
    assert sampling_of(told) == BLOCK
    with pytest.raises(BadInput, match="block verification is for rejection, not for greedy, split"):
        sampling_of(RunConfig(methods=("greedy", "split"), verification="block"))
    with pytest.raises(BadInput, match="block verification is for rejection"):
        check_demo(DemoConfig(engine="llama", verification="block"))


@pytest.mark.parametrize("kind", ["split", "greedy", "target-only"])
def test_a_base_station_refuses_it_elsewhere(kind: str) -> None:
    intake = Intake(Offer("synthetic", "", VOCAB, 64, (), 4096), SessionTable())
    message = Open(session=1, protocol=kind, threshold=0.0, hidden_size=64, max_tokens=3, block=True)
    with pytest.raises(ProtocolError, match=f"{kind} has no block verification"):
        intake.open(b"ue", message, {"ids": np.array([1], np.int32)})


def test_distributions_that_differ_by_rounding_errors_alone_are_accepted() -> None:
    """What is left of the target's distribution, 1e-17, vanishes beside 1."""
    q = np.array([0.1, 0.9])
    p = np.array([np.nextafter(0.1, 1), 0.9])
    assert 0 < np.maximum(p - q, 0.0).sum() < 1e-16
    targets = [q, p, q]
    stays, _ = whole(accept_block([1, 0], lambda i: q, targets.__getitem__, lambda i: 0.999))
    assert stays == 2
