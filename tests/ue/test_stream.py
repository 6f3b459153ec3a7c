"""Streams that windows of a drafter without a model join: outputs stay the target's, no slower than it alone."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from testbed.bs.intake import Offer
from testbed.bs.sessions import SessionTable
from testbed.channel.link_model import Direction, constant
from testbed.errors import ProtocolError
from testbed.experiments.deployment.profiled import ProfilePace, ProfileRunner
from testbed.experiments.deployment.virtual import VirtualDeployment, VirtualStation
from testbed.experiments.inputs.profile import LinearDraft, LinearVerify, Profile
from testbed.protocols import protocol
from testbed.protocols.codec import AnyArray, Packet
from testbed.protocols.messages import MOST_JOINING, Draft, Fault, Message, Open, Opened, Verdict
from testbed.protocols.sampling import GREEDY, Sampling
from testbed.tasks import together
from testbed.ue.client import Client
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.session import DecodingSession, Progress
from testbed.ue.target_only import decode_remotely
from testbed.ue.waiting.mailbox import Mailbox
from testbed.ue.windows.fixed import FixedWindow
from testbed.ue.windows.stream_choice import StreamChoice
from testbed.virtual_time import run_virtually
from tests.support.copying import VOCAB, CopyingEngine, index_drafter, own
from tests.support.endpoints import until
from tests.support.stations import client, station

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
PROFILE = Profile(
    name="test", about="", source="", draft=LinearDraft(per_token_s=0.01),
    verify=LinearVerify(base_s=0.0, per_drafted_s=0.002, undrafted_s=0.02, least_s=0.02),
)  # fmt: skip


class Ue(NamedTuple):
    """How one UE decodes."""

    drafter: str = "suffix"
    """Empty: the target alone."""
    window: int = 8
    rtt_s: float = 0.1
    tokens: int = 100
    ends: tuple[int, ...] = ()
    sampling: Sampling = GREEDY
    stream: bool = True
    floor: int = 3


def serve(
    ues: list[Ue], errors: float, sessions: SessionTable | None = None
) -> tuple[list[RequestRecord], VirtualStation]:
    """Decode with all UEs at once, in virtual time."""

    async def decode(bs: VirtualStation, deployment: VirtualDeployment, ue: Ue) -> RequestRecord:
        way = constant(delay_s=ue.rtt_s / 2)
        found = bs.connect((Direction(way), Direction(way)))
        await found.connect("", VOCAB)
        if not ue.drafter:
            return await decode_remotely(found, PROMPT, ue.tokens, ue.ends, sampling=ue.sampling, seed=7)
        session = DecodingSession(
            found, index_drafter(ue.drafter, ue.floor), protocol("coupled" if ue.sampling.coupled else "greedy"),
            FixedWindow(ue.window), pace=ProfilePace(PROFILE, deployment.clock), sampling=ue.sampling, seed=7,
            stream=ue.stream,
        )  # fmt: skip
        return await session.decode(PROMPT, ue.tokens, ue.ends)

    async def main() -> tuple[list[RequestRecord], VirtualStation]:
        deployment = VirtualDeployment()
        engine = CopyingEngine(errors)
        offer = Offer("synthetic", "", VOCAB, engine.hidden_size, (), engine.max_positions)
        runner = ProfileRunner(engine, PROFILE, deployment.clock)
        bs = deployment.base_station(runner, offer, sessions=sessions)
        return await deployment.run(together(decode(bs, deployment, ue) for ue in ues)), bs

    return run_virtually(main())


@pytest.mark.parametrize("drafter", ["ngram", "suffix"])
@settings(max_examples=25, deadline=None)
@given(
    window=st.integers(1, 64), errors=st.sampled_from([0.0, 0.02, 0.1, 0.4, 1.0]), floor=st.integers(1, 4),
    rtt_ms=st.sampled_from([0, 20, 300]), tokens=st.integers(1, 120), end=st.integers(0, 2 * VOCAB),
)  # fmt: skip
def test_outputs_are_the_targets_own(
    drafter: str, window: int, errors: float, floor: int, rtt_ms: int, tokens: int, end: int
) -> None:
    ue = Ue(drafter, window, rtt_ms / 1e3, tokens, (end,), floor=floor)
    (found,), _ = serve([ue], errors)
    assert found.token_ids == own(PROMPT, tokens, errors, (end,))
    assert sum(record.committed for record in found.rounds) == len(found.token_ids)
    assert all(record.streamed and record.accepted <= record.drafted <= window for record in found.rounds)


@pytest.mark.parametrize("rtt_s", [0.002, 0.05, 0.4])
@pytest.mark.parametrize("errors", [0.0, 0.02, 0.1, 0.4, 1.0])
def test_never_slower_than_the_target_alone(errors: float, rtt_s: float) -> None:
    """Passes of up to 10 drafted tokens take no longer than the others, so that wrong tokens cost nothing either. At
    400 ms the target decodes 20 tokens before the first window can join.
    """
    times_s = {}
    for name in ("", "suffix"):
        (found,), _ = serve([Ue(name, rtt_s=rtt_s)], errors)
        times_s[name] = found.latency_s
    assert times_s["suffix"] <= times_s[""] + 1e-9
    if errors <= 0.02:
        assert times_s["suffix"] < (0.65 if rtt_s > 0.1 else 0.55) * times_s[""]


def test_waiting_for_empty_windows_costs_a_round_trip_each() -> None:
    (waited,), _ = serve([Ue(stream=False)], 1.0)
    assert waited.token_ids == own(PROMPT, 100, 1.0) and waited.latency_s > 100 * 0.12 - 1e-9
    assert not any(record.streamed for record in waited.rounds)


@pytest.mark.parametrize("temperature", [0.4, 1.0])
def test_coupled_streams_equal_the_target_with_the_same_seed(temperature: float) -> None:
    how = Sampling(temperature, coupled=True)
    (drafted, alone), _ = serve([Ue(sampling=how), Ue("", sampling=how)], 0.05)
    assert drafted.token_ids == alone.token_ids
    assert any(record.accepted for record in drafted.rounds)


def test_many_at_once_with_little_room() -> None:
    """Windows that find no room are dropped, and the streams go on without them."""
    ues = [Ue(("suffix", "ngram", "")[i % 3], 1 + i % 9, 0.02 * (i % 4)) for i in range(16)]
    for pending in (None, 4):
        found, bs = serve(ues, 0.05, SessionTable(pending=pending))
        assert [one.token_ids for one in found] == [own(PROMPT, 100, 0.05)] * 16
        assert bs.waiting == 0


async def real(address: str, progress: Progress | None = None) -> RequestRecord:
    """A request on a socket."""
    async with client(address) as ue:
        session = DecodingSession(ue, index_drafter("suffix"), protocol("greedy"), FixedWindow(8), stream=True)
        return await session.decode(PROMPT, 100, (), progress)


@pytest.mark.parametrize("errors", [0.0, 0.1, 1.0])
async def test_on_a_socket_outputs_are_the_same(errors: float) -> None:
    """Whatever windows come in time, and whatever the engine decodes ahead meanwhile."""
    async with station(CopyingEngine(errors)) as (bs, address):
        found = await real(address)
        counted = bs.metrics()
        await until(lambda: len(bs._intake.sessions) == 0)
        assert bs._intake.sessions.held == (0, 0)
    assert found.token_ids == own(PROMPT, 100, errors)
    if errors == 0.0:  # windows are sent; whether they come in time depends on the machine
        assert any(record.uplink_bytes for record in found.rounds[1:])
    assert counted["failed_passes"] == 0


@pytest.mark.parametrize("errors", [0.0, 0.1])
async def test_a_session_that_the_base_station_has_lost_goes_on(errors: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A UE that has windows to send learns of it at once, any other after a silence."""
    monkeypatch.setattr("testbed.ue.exchange.SILENCE_S", 0.5)
    async with station(CopyingEngine(errors)) as (bs, address):

        def lose(record: RoundRecord) -> None:
            if record.round in (2, 9, 10):
                for session in list(bs._intake.sessions):
                    bs._intake.sessions.lose(session, "a test")

        found = await asyncio.wait_for(real(address, lose), 60)
    assert found.token_ids == own(PROMPT, 100, errors)


@pytest.mark.parametrize("errors", [0.1, 1.0])
@pytest.mark.parametrize("lost", [(4, 5), (40,), (-1,)])
async def test_tokens_that_were_lost_do_not_stop_a_stream(
    errors: float, lost: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a base station opens its socket anew: the verdict after a lost one shows the loss, and of the last one a
    silence that is long for this stream. The silence that is allowed before the first token is beyond the time here.
    """
    monkeypatch.setattr("testbed.ue.exchange.SILENCE_S", 1000.0)
    monkeypatch.setattr("testbed.ue.exchange.RESEND_S", 0.3)
    put, dropped = Mailbox.put, list[int]()

    def drop(mailbox: Mailbox, packet: Packet[Any]) -> None:
        message = packet.message
        if isinstance(message, Verdict):
            base_len = message.base_len or 0
            end = base_len + message.accepted + 1 - len(PROMPT)
            if base_len not in dropped and (end >= 100 if lost[0] < 0 else message.round in lost):
                dropped.append(base_len)
                return
        put(mailbox, packet)

    monkeypatch.setattr(Mailbox, "put", drop)
    async with station(CopyingEngine(errors)) as (_, address):
        found = await asyncio.wait_for(real(address), 30)
    assert dropped
    assert found.token_ids == own(PROMPT, 100, errors)


async def test_a_verdict_of_more_tokens_than_joined_is_refused_before_it_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put, passed, counted = Mailbox.put, StreamChoice.passed, list[int]()

    def lie(mailbox: Mailbox, packet: Packet[Any]) -> None:
        if isinstance(packet.message, Verdict) and packet.message.round >= 5:
            packet = Packet(replace(packet.message, accepted=10**6), packet.arrays, packet.size_bytes)
        put(mailbox, packet)

    def noted(choice: StreamChoice, joined: int, bs_s: float, committed: int, others: int | None) -> None:
        counted.append(committed)
        passed(choice, joined, bs_s, committed, others)

    monkeypatch.setattr(Mailbox, "put", lie)
    monkeypatch.setattr(StreamChoice, "passed", noted)
    async with station(CopyingEngine(0.0)) as (_, address):
        with pytest.raises(ProtocolError, match="accepts 1000000 of"):
            await asyncio.wait_for(real(address), 30)
    assert max(counted) <= 9


async def test_a_stream_whose_opening_was_lost_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without waiting as long as for a first token, which may take its time."""
    monkeypatch.setattr("testbed.ue.exchange.SILENCE_S", 1000.0)
    monkeypatch.setattr("testbed.ue.exchange.RESEND_S", 0.3)
    send, opened = Client.send, list[Message]()

    async def lose(ue: Client, message: Message, arrays: dict[str, AnyArray] | None = None) -> int:
        if isinstance(message, Open):
            opened.append(message)
            if len(opened) < 3:
                return 0
        return await send(ue, message, arrays)

    monkeypatch.setattr(Client, "send", lose)
    async with station(CopyingEngine(0.0)) as (_, address):
        found = await asyncio.wait_for(real(address), 30)
    assert len(opened) >= 3
    assert found.token_ids == own(PROMPT, 100, 0.0)


async def test_a_long_prompt_on_a_slow_link_goes_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.ue.exchange.RESEND_S", 0.1)
    send, opened = Client.send, list[Message]()

    async def late(ue: Client, message: Message, arrays: dict[str, AnyArray] | None = None) -> int:
        opened.extend([message] if isinstance(message, Open) else [])
        asyncio.get_running_loop().call_later(0.5, lambda: asyncio.ensure_future(send(ue, message, arrays)))
        return 125_000  # a second at 1 Mbit/s

    async with station(CopyingEngine(0.0)) as (_, address):
        monkeypatch.setattr(Client, "send", late)
        found = await asyncio.wait_for(real(address), 30)
    assert len(opened) == 1
    assert found.token_ids == own(PROMPT, 100, 0.0)


@settings(max_examples=30, deadline=None)
@given(
    drafts=st.lists(
        st.tuples(st.integers(0, 60), st.lists(st.integers(0, 20), max_size=12)), min_size=1, max_size=30
    ),
    right=st.lists(st.tuples(st.integers(12, 50), st.integers(1, 12)), max_size=10), window=st.integers(1, 8),
)  # fmt: skip
def test_whatever_windows_come_the_stream_is_the_targets(
    drafts: list[tuple[int, list[int]]], right: list[tuple[int, int]], window: int
) -> None:
    """Windows at any place, right and wrong ones: the output of the base station does not depend on them."""
    output = [*PROMPT, *own(PROMPT, 60, 0.1)]
    drafts = drafts + [(base, output[base : base + size]) for base, size in right]

    async def main() -> None:
        async with station(CopyingEngine(0.1)) as (bs, address), client(address) as ue:
            number = ue.new_session()
            opening = Open(
                session=number,
                protocol="greedy",
                threshold=0.0,
                hidden_size=1,
                max_tokens=40,
                alone=True,
                stream=window,
            )
            await ue.send(opening, {"ids": np.array(PROMPT, np.int32)})
            for i, (base_len, ids) in enumerate(drafts):
                message = Draft(session=number, round=i, base_len=base_len)
                await ue.send(message, {"ids": np.array(ids, np.int32)})
            got = list(PROMPT)
            while len(got) < len(PROMPT) + 40:
                message = (await ue.receive(number, 5.0)).message
                if isinstance(message, Opened):
                    continue
                assert isinstance(message, Verdict) and message.base_len == len(got) and message.accepted <= window
                if message.draft is not None:
                    base_len, ids = drafts[message.draft]
                    got += ids[len(got) - base_len :][: message.accepted]
                else:
                    assert message.accepted == 0
                got.append(message.token)
            assert got == output[: len(got)]
            assert bs._intake.sessions.held.windows <= MOST_JOINING

    asyncio.run(main())


async def test_a_complete_stream_holds_no_windows() -> None:
    """They took the room of others until the session was closed."""
    async with station() as (bs, address), client(address) as ue:
        number, first = ue.new_session(), len(PROMPT) + 1
        fields = {"threshold": 0.0, "hidden_size": 1, "max_tokens": 1, "alone": True, "stream": 4}
        await ue.send(Open(session=number, protocol="greedy", **fields), {"ids": np.array(PROMPT, np.int32)})
        for i in range(8):
            await ue.send(Draft(session=number, round=i, base_len=first + i), {"ids": np.ones(1, np.int32)})
        assert [type((await ue.receive(number, 5.0)).message) for _ in range(2)] == [Opened, Verdict]
        for i in range(8):
            await ue.send(Draft(session=number, round=i, base_len=first + i), {"ids": np.ones(1, np.int32)})
        await ue.rtt_s(1)
        assert bs._intake.sessions.held == bs.load == (0, 0)


@pytest.mark.parametrize(
    "changes", [{"protocol": "rejection"}, {"protocol": "fh"}, {"window": 4}, {"alone": False}, {"max_tokens": 0}]
)
async def test_a_stream_that_no_window_can_join_is_refused(changes: dict[str, Any]) -> None:
    async with station() as (_, address), client(address) as ue:
        fields = {"protocol": "greedy", "max_tokens": 4, "alone": True, "stream": 4, **changes}
        number = ue.new_session()
        message = Open(session=number, threshold=0.0, hidden_size=1, **fields)
        await ue.send(message, {"ids": np.array(PROMPT, np.int32)})
        assert isinstance((await ue.receive(number, 5.0)).message, Fault)
