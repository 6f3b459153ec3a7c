"""Bounds of the intake on what a UE says of itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from testbed.bs.intake import Intake, Offer
from testbed.bs.room import Load
from testbed.bs.sessions import SessionTable
from testbed.errors import ProtocolError
from testbed.protocols import TARGET_ONLY
from testbed.protocols.messages import Busy, Draft, Hidden, NeedHidden, Open, Opened, Resync, Verdict
from testbed.protocols.quantise import pack_q, unpack_q
from testbed.protocols.sampling import Sampling, quantise
from tests.support.stations import client, station

IDS = {"ids": np.array([1, 2, 3], np.int32)}


def open_(hidden_size: int) -> Open:
    return Open(session=1, protocol="sh", threshold=0.0, hidden_size=hidden_size)


@pytest.mark.parametrize("hidden_size", [-1, 0, 2**14 + 1, 2**45, 2**64 - 1])
def test_a_hidden_size_that_cannot_be_is_refused(hidden_size: int) -> None:
    intake = Intake(Offer("synthetic", "", 512, 64, (), 4096), SessionTable())
    with pytest.raises(ProtocolError, match=f"hidden_size must lie in 1..16384, not {hidden_size}"):
        intake.open(b"ue", open_(hidden_size), IDS)
    assert len(intake.sessions) == 0


@pytest.mark.parametrize("bits", [-8, 0, 1, 5, 12, 32, 2**64 - 1])
def test_bits_of_hidden_states_that_cannot_be_are_refused(bits: int) -> None:
    intake = Intake(Offer("synthetic", "", 512, 64, (), 4096), SessionTable())
    with pytest.raises(ProtocolError, match=rf"hidden_bits must be one of \(16, 8, 4\), not {bits}"):
        intake.open(b"ue", Open(session=1, protocol="sh", threshold=0.0, hidden_size=64, hidden_bits=bits), IDS)
    assert len(intake.sessions) == 0


@pytest.mark.parametrize("window", [257, 2**31 - 1])
def test_a_stream_whose_passes_exceed_the_largest_window_is_refused(window: int) -> None:
    intake = Intake(Offer("synthetic", "", 512, 64, (), 4096), SessionTable())
    opening = Open(session=1, protocol="greedy", threshold=0.0, hidden_size=64, max_tokens=9, alone=True, stream=window)
    with pytest.raises(ProtocolError, match=f"stream with passes of {window} tokens; at most 256"):
        intake.open(b"ue", opening, IDS)
    assert len(intake.sessions) == 0
    reply, _ = intake.open(b"ue", replace(opening, stream=256), IDS)
    assert isinstance(reply, Opened)


async def test_hostile_levels_are_answered_and_end_nothing() -> None:
    async with station() as (_, address), client(address) as ue:
        number = ue.new_session()
        opening = Open(session=number, protocol="sh", threshold=0.0, hidden_size=4, hidden_bits=4)
        await ue.send(opening, IDS)
        assert isinstance((await ue.receive(number, 5)).message, Opened)
        await ue.send(Draft(session=number, round=0, base_len=3), {"ids": np.array([511], np.int32)})
        assert isinstance((await ue.receive(number, 5)).message, NeedHidden)
        packed, scale = np.full((1, 2), 0x88, np.uint8), np.ones(1, np.float16)
        for arrays, reason in (
            ({"hidden": np.zeros((1, 4), np.float16)}, "expected the arrays hidden, scale"),
            ({"hidden": np.zeros((1, 2), np.uint8), "scale": scale}, "levels of hidden states"),
            ({"hidden": packed, "scale": scale * np.float16("nan")}, "scales of hidden states"),
        ):
            await ue.send(Hidden(session=number, round=0), arrays)
            assert reason in (await ue.receive(number, 5)).message.reason
        await ue.send(Hidden(session=number, round=0), {"hidden": packed, "scale": scale})
        assert isinstance((await ue.receive(number, 5)).message, Verdict)


async def test_a_window_that_is_too_long_is_refused_before_its_states_are_read() -> None:
    async with station() as (_, address), client(address) as ue:
        number = ue.new_session()
        await ue.send(Open(session=number, protocol="fh", threshold=0.0, hidden_size=64), IDS)
        assert isinstance((await ue.receive(number, 5)).message, Opened)
        arrays = {"ids": np.ones(257, np.int32), "hidden": np.zeros((1, 1), np.float16)}
        await ue.send(Draft(session=number, round=0, base_len=3), arrays)
        assert (await ue.receive(number, 5)).message.reason == "window of 257 tokens; at most 256"


def test_distributions_are_unpacked_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of windows, and windows for which there is no room, kept the base station from others for as long as good
    ones do.
    """
    intake, unpacked = Intake(Offer("synthetic", "", 512, 64, (), 4096), SessionTable(windows_bytes=2**20)), list[int]()
    how = {"temperature": 1.0, "q_bits": 4}
    intake.open(b"ue", Open(session=1, protocol="rejection", threshold=0.0, hidden_size=4, **how), IDS)
    monkeypatch.setattr("testbed.bs.intake.unpack_q", lambda *given: unpacked.append(1) or unpack_q(*given))
    q = quantise(np.eye(512)[7], bits=4)[None]
    arrays = pack_q({"ids": np.array([7], np.int32), "q": q}, Sampling(1.0, q_bits=4))
    draft = Draft(session=1, round=0, base_len=3)
    assert isinstance(intake.draft(b"ue", replace(draft, base_len=9), arrays), Resync)
    assert isinstance(intake.draft(b"ue", draft, arrays, Load(1, 2**20)), Busy)
    assert not unpacked
    assert isinstance(intake.draft(b"ue", draft, arrays), tuple) and len(unpacked) == 1
    assert intake.draft(b"ue", draft, arrays) is None
    for other in ({}, {**arrays, "ids": np.array([8], np.int32)}):
        with pytest.raises(ProtocolError, match="round 0 came before with other tokens"):
            intake.draft(b"ue", draft, other)
    assert len(unpacked) == 1


async def test_the_largest_one_is_served_and_a_wrong_answer_ends_nothing() -> None:
    async with station() as (_, address), client(address) as ue:
        number = ue.new_session()
        await ue.send(open_(2**14), IDS)
        assert isinstance((await ue.receive(number, 5)).message, Opened)
        await ue.send(Draft(session=number, round=0, base_len=3), IDS)
        assert isinstance((await ue.receive(number, 5)).message, NeedHidden)
        await ue.send(Hidden(session=number, round=0), {"hidden": np.zeros((1, 4), np.float16)})
        assert "hidden must be f2" in (await ue.receive(number, 5)).message.reason
        assert len(await ue.rtt_s(2)) == 2


@pytest.mark.parametrize("first", [2**32, 2**63, 2**64 - 1])
async def test_a_round_whose_successors_fit_no_message_is_refused_and_ends_nothing(first: int) -> None:
    """A session that the target decodes alone counts on from the number that its UE gives."""
    async with station() as (_, address), client(address) as ue:
        alone, drafting = ue.new_session(), ue.new_session()
        opening = Open(session=alone, protocol=TARGET_ONLY, threshold=0.0, hidden_size=64, max_tokens=9, round=first)
        await ue.send(opening, IDS)
        assert f"round must lie in 0..4294967295, not {first}" in (await ue.receive(alone, 5)).message.reason
        await ue.send(Open(session=drafting, protocol="greedy", threshold=0.0, hidden_size=64), IDS)
        assert isinstance((await ue.receive(drafting, 5)).message, Opened)
        await ue.send(Draft(session=drafting, round=first, base_len=3), IDS)
        assert "round" in (await ue.receive(drafting, 5)).message.reason
        await ue.send(Draft(session=drafting, round=0, base_len=3), IDS)
        assert isinstance((await ue.receive(drafting, 5)).message, Verdict)


def test_sessions_that_admission_closed_make_room_once() -> None:
    """The same sessions were closed again for their tokens: a controller was told twice of their ends."""
    intake = Intake(Offer("synthetic", "", 512, 64, (), 4096), SessionTable(tokens=1000, ue_share=0.5))
    ids, closed = {"ids": np.ones(200, np.int32)}, list[Any]()
    for number in range(4):
        intake.open(b"one", Open(session=number, protocol="greedy", threshold=0.0, hidden_size=4), ids)

    def admit(key: Any, message: Open) -> None:
        lost = next(iter(intake.sessions))
        intake.sessions.lose(lost, "the time of its guarantee was needed for other UEs")
        closed.append(lost)

    message = Open(session=1, protocol="greedy", threshold=0.0, hidden_size=4)
    reply, _ = intake.open(b"two", message, {"ids": np.ones(350, np.int32)}, admit, closed.append)
    assert isinstance(reply, Opened) and len(closed) == len(set(map(id, closed))) == 1
    assert len(intake.sessions) == 4
