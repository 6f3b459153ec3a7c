"""Rejection sampling from end to end: the server, sockets, and runs in virtual time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from testbed.bs.engines.base import VerifyRequest, VerifyResult
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.intake import Intake, Offer
from testbed.bs.server import BaseStation
from testbed.bs.sessions import SessionTable
from testbed.channel.cost import Sizes
from testbed.channel.spec import ChannelSpec
from testbed.config import RunConfig
from testbed.errors import BadInput, ProtocolError
from testbed.experiments.inputs.formats import Example
from testbed.experiments.inputs.profile import LinearDraft, LinearVerify, Profile
from testbed.experiments.runs.prepare import Prompt, Workload
from testbed.experiments.runs.uerun import result_of
from testbed.experiments.runs.virtual import Models, run_virtual
from testbed.protocols import protocol
from testbed.protocols.base import HEADER_DOWN_BYTES, HEADER_UP_BYTES
from testbed.protocols.codec import AnyArray, Packet
from testbed.protocols.messages import Draft, Fault, Open, Opened, Resync, Verdict
from testbed.protocols.sampling import GREEDY, Sampling, quantise
from testbed.ue.client import Client
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.records import RequestRecord
from testbed.ue.run import Outcome, sampling_of
from testbed.ue.session import DecodingSession
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.fixed import FixedWindow
from tests.support.sampled import chances, p_value, rows
from tests.support.stations import VOCAB, client, station
from tests.support.virtual import QUIET

KINDS = ("rejection", "split")
PROMPT = [3, 1, 4, 1, 5]
BLOCK = {"verification": "block"}
SMALL = 5
"""Vocabulary of those that are counted."""


# ---------------------------------------------------------------- whole runs, in virtual time


def run(prompts: int, sizes: Sizes | None = None, **config: object) -> tuple[RunConfig, Workload, list[Outcome]]:
    """The same prompt again and again, by every method."""
    engine = SyntheticEngine(vocab_size=SMALL)
    offer = Offer("synthetic", "", SMALL, engine.hidden_size, (), engine.max_positions)
    models = Models(engine, SyntheticDrafter(vocab_size=SMALL, alpha=0.3), offer)
    told = RunConfig(**{"window": 2, "max_tokens": 3, "warmup": 0, **config})  # type: ignore[arg-type]
    work = Workload([Prompt([3, 1, 4], Example(""))] * prompts, [], None, "")
    profile = Profile(
        name="bare", about="", source="", draft=LinearDraft(per_token_s=0.01, base_s=0.0, prefill_per_token_s=0.0),
        verify=LinearVerify(base_s=0.03, per_drafted_s=0.0, undrafted_s=0.03),
    )  # fmt: skip
    link = ChannelSpec(kind="virtual", uplink_mbps=20, downlink_mbps=20, rtt_ms=10)
    return told, work, run_virtual(told, work, QUIET, link, profile, models)


def test_outputs_of_a_run_are_distributed_as_the_targets_own_by_every_method_that_samples() -> None:
    methods = (*KINDS, "target-only")
    _, _, outcomes = run(1000, methods=methods, temperature=1.3, top_k=4)
    expected = chances(rows(SyntheticEngine(vocab_size=SMALL)), (3, 1, 4), Sampling(1.3, 4), 3)
    for method in methods:
        counts = Counter(tuple(o.record.token_ids) for o in outcomes if o.method == method)
        assert counts.total() == 1000
        assert p_value(counts, expected) > 1e-4
    assert all(o.lossless is None for o in outcomes)


def test_a_run_with_block_verification_is_distributed_alike_and_commits_no_fewer_tokens_per_round() -> None:
    how = {"methods": ("rejection",), "temperature": 1.3, "window": 4}
    _, _, outcomes = run(1000, **how, **BLOCK)
    expected = chances(rows(SyntheticEngine(vocab_size=SMALL)), (3, 1, 4), Sampling(1.3), 3)
    assert p_value(Counter(tuple(o.record.token_ids) for o in outcomes), expected) > 1e-4
    token_wise, block = ([o.record for o in run(60, **how, max_tokens=40, **more)[2]] for more in ({}, BLOCK))
    assert sum(len(r.rounds) for r in block) < sum(len(r.rounds) for r in token_wise)
    config, work, outcomes = run(2, **how, **BLOCK)
    assert [row["verification"] for row in result_of(config, work, outcomes).rows] == ["block"]


def test_a_run_repeats_and_its_rows_say_what_was_held_against_the_target() -> None:
    methods = ("target-only", "greedy", *KINDS)
    config, work, outcomes = run(12, methods=methods, max_tokens=20)
    _, _, again = run(12, methods=methods, max_tokens=20, concurrency=3)

    def outputs(found: list[Outcome]) -> dict[tuple[str, int], list[int]]:
        return {(o.method, o.request): o.record.token_ids for o in found}

    assert outputs(outcomes) == outputs(again)
    assert outputs(outcomes) != outputs(run(12, methods=methods, max_tokens=20, seed=1)[2])
    assert len({tuple(o.record.token_ids) for o in outcomes if o.method != "greedy"}) == 36
    assert len({tuple(o.record.token_ids) for o in outcomes if o.method == "greedy"}) == 1
    table = {row["method"]: row["lossless"] for row in result_of(config, work, outcomes).rows}
    assert table == {"target-only": None, "greedy": True, "rejection": None, "split": None}


def test_without_temperature_every_method_is_lossless() -> None:
    methods = ("target-only", "greedy", *KINDS)
    config, work, outcomes = run(2, methods=methods, max_tokens=20, temperature=0.0)
    assert len({tuple(o.record.token_ids) for o in outcomes}) == 1
    assert {row["lossless"] for row in result_of(config, work, outcomes).rows} == {True}


def test_which_temperature_a_run_takes() -> None:
    assert sampling_of(RunConfig(methods=("greedy", "target-only"))) == GREEDY
    assert sampling_of(RunConfig(methods=("greedy", "split"), top_k=5, top_p=0.9)) == Sampling(1.0, 5, 0.9)
    assert sampling_of(RunConfig(methods=("coupled",))) == Sampling(1.0)
    assert sampling_of(RunConfig(methods=("fh",), sampling="coupled")) == Sampling(1.0, coupled=True)
    assert sampling_of(RunConfig(methods=("rejection",), temperature=0.0)) == GREEDY
    assert sampling_of(RunConfig(methods=("target-only",), temperature=0.7)) == Sampling(0.7)
    with pytest.raises(BadInput, match="temperature"):
        sampling_of(RunConfig(methods=("greedy",), temperature=-1.0))


# ---------------------------------------------------------------- over a socket


async def decode(address: str, kind: str, seed: int = 3, tokens: int = 60, **how: object) -> RequestRecord:
    drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.6)
    async with client(address) as connection:
        session = DecodingSession(
            connection, drafter, protocol(kind), FixedWindow(5), sampling=Sampling(1.2, 50), seed=seed, **how
        )  # type: ignore[arg-type]
        return await session.decode(PROMPT, tokens, ())


@pytest.mark.parametrize("kind", KINDS)
async def test_bytes_at_the_socket_are_the_stated_payload_and_bounded_headers(kind: str) -> None:
    async with station() as (_, address):
        record = await decode(address, kind)
    rejected = [r.accepted < r.drafted for r in record.rounds]
    assert any(rejected) and not all(rejected)
    assert [bool(r.queried) for r in record.rounds] == (rejected if kind == "split" else [False] * len(rejected))
    for r in record.rounds:
        bits = protocol(kind).payload(r.drafted, r.queried, Sizes(hidden_size=64, vocab_size=VOCAB))
        assert 0 < r.uplink_bytes - bits.uplink_bits / 8 <= HEADER_UP_BYTES
        assert 0 < r.downlink_bytes - bits.downlink_bits / 8 <= HEADER_DOWN_BYTES


@pytest.mark.parametrize("kind", KINDS)
async def test_a_session_that_the_bs_forgot_gives_the_same_output(kind: str) -> None:
    forgotten = []

    def forgetful(bs: BaseStation) -> object:
        def forget(record: object) -> None:
            if len(forgotten) < 6:
                forgotten.append(bs._intake.sessions._sessions.popitem())

        return forget

    async with station() as (bs, address):
        whole = await decode(address, kind)
        drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.6)
        async with client(address) as connection:
            session = DecodingSession(
                connection, drafter, protocol(kind), FixedWindow(5), sampling=Sampling(1.2, 50), seed=3
            )
            broken = await session.decode(PROMPT, 60, (), forgetful(bs))  # type: ignore[arg-type]
    assert len(forgotten) == 6 and whole.token_ids == broken.token_ids
    assert kind == "rejection" or any(session.owed for _, session in forgotten)


class Line:
    """A session spoken by hand."""

    def __init__(self, connection: Client, kind: str, **fields: object) -> None:
        self.connection, self.number = connection, connection.new_session()
        self._open = Open(
            session=self.number, protocol=kind, threshold=0.0, hidden_size=64, **fields  # type: ignore[arg-type]
        )  # fmt: skip

    async def open(self, prompt: list[int] = PROMPT) -> object:
        await self.connection.send(self._open, {"ids": np.array(prompt, np.int32)})
        return (await self.connection.receive(self.number, 5)).message

    async def draft(self, arrays: dict[str, AnyArray], round_: int = 0, base_len: int = 5) -> Packet[object]:
        await self.connection.send(Draft(session=self.number, round=round_, base_len=base_len), arrays)
        return await self.connection.receive(self.number, 5)


def whole(*ids: int, size: int = VOCAB) -> dict[str, AnyArray]:
    q = quantise(np.full(size, 1 / size))
    return {"ids": np.array(ids, np.int32), "q": np.stack([q] * len(ids))}


def certain(*ids: int, **more: int) -> dict[str, AnyArray]:
    """Tokens that were drawn with certainty, and so are rejected wherever the target is not as certain."""
    arrays = {"ids": np.array(ids, np.int32), "q": np.full(len(ids), 65535, np.uint16)}
    return arrays | {name: np.array([value], np.int32) for name, value in more.items()}


async def test_the_same_draft_again_gets_the_same_verdict() -> None:
    async with station() as (bs, address), client(address) as connection:
        for kind, arrays in (("rejection", whole(1, 2)), ("split", certain(1, 2))):
            line = Line(connection, kind, temperature=1.0, seed=5)
            assert isinstance(await line.open(), Opened)
            first, again = await line.draft(arrays), await line.draft(arrays)
            assert isinstance(first.message, Verdict) and again.message == first.message
            assert list(again.arrays) == list(first.arrays) == ([] if kind == "rejection" else ["target"])
            for name in first.arrays:
                np.testing.assert_array_equal(first.arrays[name], again.arrays[name])
            assert isinstance((await line.draft({**arrays, "ids": arrays["ids"] + 1})).message, Fault)
            reopened = Line(connection, kind, temperature=1.0, seed=5)
            await reopened.open()
            anew = (await reopened.draft(arrays)).message
            assert isinstance(anew, Verdict)
            assert (anew.accepted, anew.token) == (first.message.accepted, first.message.token)
    assert bs.metrics()["passes"] == 4


async def test_the_token_that_the_ue_drew_comes_with_its_next_window_or_the_window_is_refused() -> None:
    async with station() as (_, address), client(address) as connection:
        line = Line(connection, "split", temperature=1.0)
        await line.open()
        verdict = await line.draft(certain(1, 2))
        assert verdict.message.token == -1 and verdict.message.accepted == 0  # type: ignore[attr-defined]
        assert verdict.arrays["target"].shape == (VOCAB,)
        assert isinstance((await line.draft(certain(1), 1, 5)).message, Resync)
        missing = (await line.draft(certain(1), 1, 6)).message
        assert isinstance(missing, Fault) and "missing" in missing.reason
        outside = (await line.draft(certain(1, token=VOCAB), 1, 6)).message
        assert isinstance(outside, Fault) and "token ids" in outside.reason
        assert isinstance((await line.draft(certain(1, token=9), 1, 6)).message, Verdict)
        assert isinstance(await line.open([*PROMPT, 9]), Opened)
        other = (await line.draft(certain(1, token=8), 1, 6)).message
        assert isinstance(other, Fault) and "not the last one" in other.reason
        assert isinstance((await line.draft(certain(1, token=9), 1, 6)).message, Verdict)


async def test_distributions_over_another_vocabulary_are_refused() -> None:
    async with station() as (_, address), client(address) as connection:
        line = Line(connection, "rejection", temperature=1.0)
        await line.open()
        answer = (await line.draft(whole(1, size=VOCAB - 1))).message
        assert isinstance(answer, Fault) and f"over {VOCAB - 1} ids; the BS knows {VOCAB}" in answer.reason
        assert isinstance((await line.draft(whole(1))).message, Verdict)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": -1}, "top_k must lie"),
        ({"top_p": 0.0}, "top-p"),
        ({"seed": -1}, "seed must lie"),
    ],
)
def test_an_open_that_asks_for_what_cannot_be_drawn(fields: dict[str, float], reason: str) -> None:
    intake = Intake(Offer("synthetic", "", VOCAB, 64, (), 4096), SessionTable())
    message = Open(session=1, protocol="split", threshold=0.0, hidden_size=64, **fields)  # type: ignore[arg-type]
    with pytest.raises((BadInput, ProtocolError), match=reason):
        intake.open(b"ue", message, {"ids": np.array([1], np.int32)})
    assert not len(intake.sessions)


async def test_a_target_that_says_no_numbers_fails_the_request_and_not_the_server() -> None:
    class Broken(SyntheticEngine):
        broken = 1

        def compute(self, batch: list[VerifyRequest]) -> list[VerifyResult]:  # type: ignore[override]
            results = super().compute(batch)
            if not self.broken:
                return results
            self.broken -= 1
            return [replace(r, logprobs=np.full_like(r.logprobs, np.nan)) for r in results]

    async with station(Broken(vocab_size=VOCAB)) as (_, address):
        with pytest.raises(ProtocolError, match="not numbers"):
            await decode(address, "split")
        assert len((await decode(address, "split")).token_ids) == 60


async def test_a_session_without_temperature_asks_for_no_distributions() -> None:
    class Watched(SyntheticEngine):
        asked: list[bool]

        def compute(self, batch: list[VerifyRequest]) -> list[VerifyResult]:  # type: ignore[override]
            self.asked += [r.logprobs for r in batch]
            return super().compute(batch)

    engine = Watched(vocab_size=VOCAB)
    for sampling, expected in ((GREEDY, False), (Sampling(), True)):
        engine.asked = []
        async with station(engine) as (_, address), client(address) as connection:
            drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.6)
            session = DecodingSession(connection, drafter, protocol("rejection"), FixedWindow(3), sampling=sampling)
            await session.decode(PROMPT, 9, ())
            await decode_remotely(connection, PROMPT, 4, (), None, sampling)
        assert set(engine.asked) == {expected}
