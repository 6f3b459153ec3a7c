"""Verification only where the drafter is unsure: by a simulation of its own, and where it is lossy."""

from __future__ import annotations

import numpy as np
import pytest

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.intake import Intake, Offer
from testbed.bs.sessions import SessionTable
from testbed.channel.cost import Payload, Sizes
from testbed.errors import BadInput, ProtocolError
from testbed.protocols import PROTOCOLS, protocol
from testbed.protocols.base import Drafted
from testbed.protocols.codec import AnyArray
from testbed.protocols.messages import Open
from testbed.protocols.methods import methods, run_method
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.load_drafter import check_states
from testbed.ue.records import RequestRecord
from testbed.ue.session import DecodingSession
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.fixed import FixedWindow
from tests.support.sampled import rows
from tests.support.stations import VOCAB, client, station

PROMPT = [3, 1, 4, 1, 5]
IDS = np.array([7, 8, 9], np.int32)


async def decode(address: str, theta: float, window: int = 5, tokens: int = 80, **how: int) -> RequestRecord:
    drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.6)
    async with client(address) as connection:
        session = DecodingSession(connection, drafter, protocol("skip"), FixedWindow(window), theta, **how)
        return await session.decode(PROMPT, tokens, ())


async def own(address: str, prefix: list[int], tokens: int) -> list[int]:
    async with client(address) as connection:
        return (await decode_remotely(connection, prefix, tokens, ())).token_ids


def simulated(theta: float, window: int, tokens: int) -> tuple[list[int], int]:
    """Output and number of rounds, computed token by token from the two models."""
    drafter, said = SyntheticDrafter(vocab_size=VOCAB, alpha=0.6), rows(SyntheticEngine(vocab_size=VOCAB))
    text, rounds = list(PROMPT), 0
    while (room := tokens - (len(text) - len(PROMPT))) > 0:
        base, sure = len(text), True
        while sure and len(text) - base < min(window, room):
            guess = drafter.predict(tuple(text), False)
            sure = guess.top1 >= 1 - theta
            text.append(guess.id)
        if not sure and int(said(tuple(text[:-1])).argmax()) != text[-1]:
            text.pop()
        text.append(int(said(tuple(text)).argmax()))
        rounds += 1
    return text[len(PROMPT) :][:tokens], rounds


@pytest.mark.parametrize("theta", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("window", [2, 6])
async def test_tokens_below_the_threshold_are_the_targets_and_others_the_drafters(theta: float, window: int) -> None:
    async with station() as (_, address):
        record = await decode(address, theta, window)
    output, rounds = simulated(theta, window, 80)
    assert (record.token_ids, len(record.rounds)) == (output, rounds)


async def test_it_is_lossy_above_zero_and_greedy_at_zero() -> None:
    async with station() as (_, address):
        target = await own(address, PROMPT, 80)
        assert (await decode(address, 0.0)).token_ids == target
        lossy = (await decode(address, 0.9)).token_ids
    assert lossy != target


async def test_drafting_ahead_changes_nothing() -> None:
    async with station() as (_, address):
        assert (await decode(address, 0.6, lookahead=1)).token_ids == (await decode(address, 0.6)).token_ids


def test_what_travels() -> None:
    sent = protocol("skip").uplink(Drafted(IDS, np.zeros((3, 1), np.float16), unchecked=2))
    assert sent["unchecked"].tolist() == [2]
    assert protocol("skip").window(sent, 1).unchecked == 2
    # 3 ids of 10 bits and a number up to 3 in 2 bits; position and id down
    assert protocol("skip").payload(3, 0, Sizes(1, id_bits=10)) == Payload(32, 12)


@pytest.mark.parametrize(
    "unchecked", [np.array([4], np.uint16), np.array([1, 1], np.uint16), np.array([1], np.int32), None]
)
def test_windows_that_are_not(unchecked: AnyArray | None) -> None:
    arrays = {"ids": IDS} if unchecked is None else {"ids": IDS, "unchecked": unchecked}
    with pytest.raises(ProtocolError, match="unchecked"):
        protocol("skip").window(arrays, 1)


def test_the_gate_leaves_it_out_and_no_other_protocol_skips() -> None:
    assert [kind for kind, one in PROTOCOLS.items() if one.skips] == ["skip"]
    exact = {kind for kind, method in methods().items() if method.exact(0.5)}
    assert exact == set(methods()) - {"skip", "fh", "sh", "auto"}
    assert {kind for kind, method in methods().items() if method.exact(0.5, True)} == set(methods()) - {"skip"}
    assert run_method("skip").exact(0.0)


def test_where_it_is_refused() -> None:
    with pytest.raises(BadInput, match="drafter suffix is not sure"):
        check_states("suffix", ("skip",))
    intake = Intake(Offer("synthetic", "", VOCAB, 64, (), 4096), SessionTable())
    message = Open(
        session=1, protocol="skip", threshold=0.5, hidden_size=64, max_tokens=9, alone=True, stream=4
    )  # fmt: skip
    with pytest.raises(ProtocolError, match="stream"):
        intake.open(b"ue", message, {"ids": np.array([1], np.int32)})
