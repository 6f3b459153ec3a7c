"""Lookahead as verdicts hint: outputs stay the target's own, and UEs that asked for no hints follow none."""

from __future__ import annotations

import random

import pytest

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.intake import Offer
from testbed.bs.pending import Round
from testbed.bs.scheduling.hints import Hint
from testbed.bs.sessions import Session
from testbed.channel.link_model import Direction, constant
from testbed.errors import BadInput, ProtocolError
from testbed.experiments.deployment.load import LoadUe
from testbed.experiments.deployment.profiled import ProfilePace, ProfileRunner
from testbed.experiments.deployment.virtual import VirtualDeployment
from testbed.experiments.inputs.profile import LinearDraft, LinearVerify, Profile
from testbed.protocols.messages import NO_HINT
from testbed.synthetic import next_token
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.records import RequestRecord
from testbed.ue.windows.fixed import FixedWindow
from testbed.ue.windows.lookahead import Lookahead
from testbed.virtual_time import run_virtually
from tests.support.hints import Unlearning

VOCAB, TOKENS, PROMPT = 64, 80, [3, 1, 4, 1, 5]
PROFILE = Profile(
    name="test", about="", source="", draft=LinearDraft(per_token_s=0.01), verify=LinearVerify(base_s=0.02)
)


class Dice(Unlearning):
    """Implements `WindowHints`: lookahead at random, also none."""

    def __init__(self, seed: int) -> None:
        self._dice, self.given = random.Random(seed), list[int]()

    def hint(self, session: Session, round_: Round, accepted: int, now_s: float) -> Hint:
        self.given.append(self._dice.choice((NO_HINT, 0, 1)))
        return Hint(lookahead=self.given[-1])


def decode(hints: Dice, chooser: Lookahead | None, protocol: str = "greedy", lookahead: int = 0) -> RequestRecord:
    """One request in virtual time."""

    async def main() -> RequestRecord:
        deployment, engine = VirtualDeployment(), SyntheticEngine(vocab_size=VOCAB)
        offer = Offer("synthetic", "", VOCAB, engine.hidden_size, (), engine.max_positions)
        bs = deployment.base_station(ProfileRunner(engine, PROFILE, deployment.clock), offer, windows=hints)
        way = constant(delay_s=0.04)
        client = bs.connect((Direction(way), Direction(way)))

        async def ask() -> RequestRecord:
            await client.connect("", VOCAB)
            ue = LoadUe(
                client, SyntheticDrafter(vocab_size=VOCAB, alpha=0.8), FixedWindow(3),
                ProfilePace(PROFILE, deployment.clock), protocol=protocol, lookahead=lookahead, chooser=chooser,
            )  # fmt: skip
            return await ue.decode(PROMPT, TOKENS)

        return await deployment.run(ask())

    return run_virtually(main())


def own() -> list[int]:
    ids = list(PROMPT)
    for _ in range(TOKENS):
        ids.append(next_token(ids, VOCAB, 0))
    return ids[len(PROMPT) :]


@pytest.mark.parametrize("protocol", ["greedy", "fh", "sh"])
@pytest.mark.parametrize("seed", range(4))
def test_windows_follow_the_last_hint_and_outputs_are_the_targets_own(protocol: str, seed: int) -> None:
    hints = Dice(seed)
    found = decode(hints, Lookahead(seed % 2, hinted=True), protocol)
    assert list(found.token_ids) == own()
    expected, told = [seed % 2], seed % 2
    for hint in hints.given[:-1]:
        told = told if hint == NO_HINT else hint
        expected.append(told)
    assert [one.lookahead for one in found.rounds] == expected


def test_hints_last_for_the_next_response() -> None:
    chooser = Lookahead(0, hinted=True)
    hints = Dice(1)
    last = [decode(hints, chooser).rounds[0].lookahead for _ in range(6)]
    assert len(set(last[1:])) == 2 and last[0] == 0


@pytest.mark.parametrize("lookahead", [0, 1])
def test_who_asks_for_no_hints_follows_none(lookahead: int) -> None:
    found = decode(Dice(2), None, lookahead=lookahead)
    assert {one.lookahead for one in found.rounds} == {lookahead} and list(found.token_ids) == own()


def test_what_cannot_look_ahead_takes_no_hints() -> None:
    for fixed, able in ((None, True), (0, False)):
        with pytest.raises(BadInput, match="lookahead is hinted"):
            Lookahead(fixed, able=able, hinted=True)
    with pytest.raises(ProtocolError, match="lookahead is hinted for windows"):
        decode(Dice(3), Lookahead(0, hinted=True), "rejection")
