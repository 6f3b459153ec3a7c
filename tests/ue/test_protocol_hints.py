"""FH or SH as verdicts hint: outputs and verdicts stay, and rounds are recorded under the protocol that they had."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.intake import Offer
from testbed.bs.judging.base import Judge, StrictJudge
from testbed.bs.judging.head import HeadJudge
from testbed.bs.monitor.recent import Recent
from testbed.bs.pending import Round
from testbed.bs.scheduling.hints import Hint
from testbed.bs.sessions import Session, SessionTable
from testbed.channel.cost import NO_OVERHEADS, Sizes
from testbed.channel.link_model import Direction, constant
from testbed.errors import BadInput
from testbed.experiments.deployment.profiled import ProfilePace, ProfileRunner
from testbed.experiments.deployment.virtual import VirtualDeployment
from testbed.experiments.inputs.payloads import sizers
from testbed.experiments.inputs.profile import LinearDraft, LinearVerify, Profile
from testbed.protocols import PROTOCOLS, protocol
from testbed.protocols.messages import NO_HINT, Fault, Open, Opened, Verdict
from testbed.protocols.sampling import GREEDY, Sampling
from testbed.synthetic import next_token
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.records import RequestRecord
from testbed.ue.session import DecodingSession
from testbed.ue.windows.base import WindowPolicy
from testbed.ue.windows.fixed import FixedWindow
from testbed.ue.windows.hinted import Hinted
from testbed.ue.windows.uploads import Uploads
from testbed.virtual_time import run_virtually
from tests.support.heads import random_head
from tests.support.hints import Unlearning
from tests.support.stations import client, station

VOCAB, TOKENS, PROMPT = 64, 60, [3, 1, 4, 1, 5]
SIZES = Sizes(hidden_size=2048)
PROFILE = Profile(
    name="test", about="", source="", draft=LinearDraft(per_token_s=0.01, base_s=0.002, prefill_per_token_s=0.001),
    verify=LinearVerify(base_s=0.02, per_new_s=0.001),
)  # fmt: skip


@dataclass
class Dice(Unlearning):
    """Implements `WindowHints`: hints at random, whether the UE takes them or not."""

    seed: int
    share: float = 0.5
    """Share of FH."""
    given: list[Hint] = field(default_factory=list)
    came: list[bool] = field(default_factory=list)
    """Whether hidden states came with the windows."""

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)

    def hint(self, session: Session, round_: Round, accepted: int, now_s: float) -> Hint:
        self.came.append(round_.window.hidden is not None and round_.asked_s is None)
        kind = self._dice.choice(("", "?", "greedy", "fh")) if self._dice.random() < self.share else "sh"
        self.given.append(Hint(self._dice.randrange(6) if session.hinted else NO_HINT, kind))
        return self.given[-1]


class Shown(Recent):
    """Remembers the protocol that the live view shows after each round."""

    def __init__(self, sessions: SessionTable, shown: list[str]) -> None:
        super().__init__(sessions)
        self._shown = shown

    def round(self, session: Session, round_: Round, verdict: Verdict) -> None:
        super().round(session, round_, verdict)
        self._shown.append(self._row(session).protocol)


def decode(
    hints: Dice,
    judge: Judge,
    threshold: float = 0.0,
    takes: bool = True,
    lookahead: int = 0,
    windows: bool = False,
    sampling: Sampling = GREEDY,
    kind: str = "sh",
    sized: bool = False,
    shown: list[str] | None = None,
) -> RequestRecord:
    """One request in virtual time."""

    async def main() -> RequestRecord:
        deployment, engine = VirtualDeployment(), SyntheticEngine(vocab_size=VOCAB)
        offer = Offer("synthetic", "", VOCAB, engine.hidden_size, (), engine.max_positions)
        runner = ProfileRunner(engine, PROFILE, deployment.clock)
        observer = Shown(sessions := SessionTable(), [] if shown is None else shown)
        bs = deployment.base_station(runner, offer, judge=judge, windows=hints, sessions=sessions, observer=observer)
        ways = Direction(constant(10.0, 0.02)), Direction(constant(10.0, 0.02))
        ue = bs.connect(ways, sizers(SIZES, NO_OVERHEADS)) if sized else bs.connect(ways)
        policy: WindowPolicy = Hinted(FixedWindow(5)) if windows else FixedWindow(5)
        session = DecodingSession(
            ue, SyntheticDrafter(vocab_size=VOCAB, alpha=0.6), protocol(kind), policy, threshold,
            pace=ProfilePace(PROFILE, deployment.clock), sampling=sampling, seed=7, lookahead=lookahead,
            uploads=Uploads(protocol(kind), takes),
        )  # fmt: skip

        async def request() -> RequestRecord:
            await ue.connect("", VOCAB)
            return await session.decode(PROMPT, TOKENS, ())

        return await deployment.run(request())

    return run_virtually(main())


def own() -> list[int]:
    """The target's output, by its definition."""
    ids = list(PROMPT)
    for _ in range(TOKENS):
        ids.append(next_token(ids, VOCAB, 0))
    return ids[len(PROMPT) :]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32), share=st.sampled_from([0.1, 0.5, 0.9]), strict=st.booleans(),
    lookahead=st.sampled_from([0, 1]), windows=st.booleans(),
)  # fmt: skip
def test_outputs_are_the_targets_own_whatever_is_hinted(
    seed: int, share: float, strict: bool, lookahead: int, windows: bool
) -> None:
    """With the strict judge at any θ, and with a head at θ = 0."""
    judge, threshold = (StrictJudge(), 0.7) if strict else (HeadJudge(random_head()), 0.0)
    found = decode(Dice(seed, share), judge, threshold, lookahead=lookahead, windows=windows)
    assert found.token_ids == own()


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32), lookahead=st.sampled_from([0, 1]))
def test_coupled_outputs_are_those_without_hints(seed: int, lookahead: int) -> None:
    sampling = Sampling(temperature=0.9, coupled=True)
    plain = decode(Dice(0), StrictJudge(), takes=False, sampling=sampling)
    found = decode(Dice(seed), StrictJudge(), sampling=sampling, lookahead=lookahead)
    assert found.token_ids == plain.token_ids


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32), threshold=st.sampled_from([0.3, 0.6]))
def test_verdicts_of_a_head_are_those_of_either_protocol(seed: int, threshold: float) -> None:
    fh, sh = (decode(Dice(0), HeadJudge(random_head()), threshold, takes=False, kind=kind) for kind in ("fh", "sh"))
    found = decode(Dice(seed), HeadJudge(random_head()), threshold)
    assert found.token_ids == fh.token_ids == sh.token_ids
    assert [(r.accepted, r.kept) for r in found.rounds] == [(r.accepted, r.kept) for r in fh.rounds]


@pytest.mark.parametrize("sized", [False, True])
def test_rounds_have_the_hinted_protocol_and_are_recorded_under_it(sized: bool) -> None:
    hints, shown = Dice(1), list[str]()
    found = decode(hints, StrictJudge(), sized=sized, shown=shown)
    expected, now = [], "sh"
    for hint in hints.given[: len(found.rounds)]:
        expected.append(now)
        now = hint.protocol if hint.protocol in ("fh", "sh") else now
    kinds = [r.protocol for r in found.rounds]
    assert kinds == expected == shown and {"fh", "sh"} == set(kinds)
    assert [kind == "fh" for kind in kinds] == hints.came
    assert all(r.queried == (r.candidates if r.protocol == "sh" else 0) for r in found.rounds)
    if sized:
        for r in found.rounds:
            payload = protocol(r.protocol).payload(r.drafted, r.queried, SIZES)
            assert r.uplink_bytes == pytest.approx(payload.uplink_bits / 8, abs=2)
            assert r.downlink_bytes == pytest.approx(payload.downlink_bits / 8, abs=2)


@dataclass
class Nothing(Dice):
    """Hints windows of 0, which no honest base station does where the UE draws what replaces a token."""

    def hint(self, session: Session, round_: Round, accepted: int, now_s: float) -> Hint:
        super().hint(session, round_, accepted, now_s)
        return Hint(0, "")


def test_a_ue_goes_on_drafting_where_the_base_station_cannot_decode_alone() -> None:
    """After such a hint it asked the next base station for what that one has to refuse."""
    found = decode(Nothing(1), StrictJudge(), kind="split", windows=True, takes=False)
    assert found.token_ids == own() and all(r.drafted for r in found.rounds[:-1])


def test_a_ue_that_has_not_asked_for_hints_ignores_them() -> None:
    found = decode(Dice(1, share=1.0), StrictJudge(), takes=False)
    assert {r.protocol for r in found.rounds} == {"sh"} and found.token_ids == own()


@pytest.mark.parametrize("kind", [kind for kind, one in PROTOCOLS.items() if not one.beside])
async def test_hints_where_no_other_protocol_is_beside_are_refused(kind: str) -> None:
    with pytest.raises(BadInput, match=f"protocol {kind} has no other one beside it"):
        Uploads(protocol(kind), hinted=True)
    async with station() as (_, address), client(address) as ue:
        for hinted, answer in ((True, Fault), (False, Opened)):
            number = ue.new_session()
            opening = Open(session=number, protocol=kind, threshold=0.0, hidden_size=4, protocol_hints=hinted)
            await ue.send(opening, {"ids": np.array(PROMPT, np.int32)})
            message = (await ue.receive(number, 5.0)).message
            assert isinstance(message, answer)
