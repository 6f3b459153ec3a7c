"""Empty windows: every protocol carries them, outputs stay the target's own, and acceptance rates do not see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from testbed.bs.engines.base import VerifyRequest
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.intake import Intake, Offer
from testbed.bs.scheduling.averages import Averages
from testbed.bs.sessions import SessionTable
from testbed.channel.link_model import Direction, constant
from testbed.experiments.deployment.profiled import ProfileRunner
from testbed.experiments.deployment.virtual import VirtualDeployment, VirtualStation
from testbed.experiments.inputs.profile import LinearDraft, LinearVerify, Profile
from testbed.protocols import PROTOCOLS, protocol
from testbed.protocols.base import Drafted
from testbed.protocols.codec import decode_uplink, encode
from testbed.protocols.messages import VERSION, Draft, Fault, Hello
from testbed.protocols.sampling import GREEDY, Sampling
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.pace import ConstantPace
from testbed.ue.records import RequestRecord
from testbed.ue.session import DecodingSession
from testbed.ue.windows.fixed import FixedWindow
from testbed.virtual_time import run_virtually

VOCAB, TOKENS, PROMPT = 512, 40, [3, 1, 4, 1, 5]
PROFILE = Profile(
    name="test", about="", source="", draft=LinearDraft(per_token_s=0.01, prefill_per_token_s=0.001),
    verify=LinearVerify(base_s=0.02, per_new_s=0.001),
)  # fmt: skip


@dataclass(frozen=True)
class Lengths(FixedWindow):
    """Drafts `max_window` tokens and sends the first few of them, by turns."""

    lengths: Sequence[int] = (0,)
    turn: list[int] = field(default_factory=list)

    def to_send(self, drafted: Sequence[Any]) -> int:
        self.turn.append(0)
        return min(len(drafted), self.lengths[len(self.turn) % len(self.lengths)])


def decode(kind: str, lengths: Sequence[int], sampling: Sampling = GREEDY) -> tuple[RequestRecord, VirtualStation]:
    async def main() -> tuple[RequestRecord, VirtualStation]:
        deployment = VirtualDeployment()
        engine = SyntheticEngine(vocab_size=VOCAB)
        offer = Offer("synthetic", "", VOCAB, engine.hidden_size, (), engine.max_positions)
        bs = deployment.base_station(ProfileRunner(engine, PROFILE, deployment.clock), offer)
        client = bs.connect((Direction(constant()), Direction(constant())))

        async def ask() -> RequestRecord:
            await client.connect("", VOCAB)
            drafter, pace = SyntheticDrafter(vocab_size=VOCAB, alpha=0.7), ConstantPace(deployment.clock, 0.01)
            policy = Lengths(4, lengths)
            session = DecodingSession(client, drafter, protocol(kind), policy, pace=pace, sampling=sampling, seed=5)
            return await session.decode(PROMPT, TOKENS, ())

        return await deployment.run(ask()), bs

    return run_virtually(main())


@pytest.mark.parametrize("kind", PROTOCOLS)
@pytest.mark.parametrize("lengths", [(0,), (0, 3), (4,)])
def test_outputs_are_the_targets_own(kind: str, lengths: tuple[int, ...]) -> None:
    found, _ = decode(kind, lengths)
    engine = SyntheticEngine(vocab_size=VOCAB)
    own = list(PROMPT)
    for _ in range(TOKENS):
        request = VerifyRequest("own", np.array(own, np.int32), np.zeros(0, np.int32))
        own.append(int(engine.verify([request])[0].argmax[0]))
    assert found.token_ids == own[len(PROMPT) :]
    sent = [record.drafted for record in found.rounds[:-1]]
    assert set(sent) <= set(lengths) and (0 not in lengths or 0 in sent)
    assert all(record.committed == 1 for record in found.rounds if not record.drafted)


def test_tokens_left_out_cost_their_drafting_time() -> None:
    found, _ = decode("greedy", (0,))
    whole = found.rounds[2:-4]
    assert [record.draft_s for record in whole] == pytest.approx([0.04] * len(whole))
    assert [record.wasted_s for record in whole] == pytest.approx([0.04] * len(whole))


def rate(station: Any) -> float | None:
    """Acceptance rate of the only UE."""
    averages: Averages = station._bs._ledger._averages
    (ue,) = averages._ues
    return averages.acceptance(ue, 0, 0)


def test_acceptance_rates_do_not_see_empty_windows() -> None:
    (_, plain), (_, mixed) = decode("greedy", (4,)), decode("greedy", (0, 4))
    rates = [rate(plain), rate(mixed)]
    assert None not in rates and rates[0] == pytest.approx(rates[1], abs=0.2) and min(rates) > 0.5  # type: ignore[type-var]
    _, none = decode("greedy", (0,))
    assert rate(none) is None


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_an_empty_window_survives_the_wire(kind: str) -> None:
    way = protocol(kind)
    q = np.zeros((0, VOCAB), np.uint16) if way.sampled else None
    drafted = Drafted(np.zeros(0, np.int32), np.zeros((0, 8), np.float16), q)
    packet = decode_uplink(encode(Draft(session=1, round=0, base_len=5), way.uplink(drafted)))
    window = way.window(packet.arrays, 8)
    assert len(window.ids) == 0 and window.token is None


def test_a_peer_of_the_version_without_empty_windows_is_refused() -> None:
    """An older BS would answer the first empty window with `Fault`, in the middle of an output."""
    engine = SyntheticEngine(vocab_size=VOCAB)
    intake = Intake(Offer("synthetic", "", VOCAB, engine.hidden_size, (), engine.max_positions), SessionTable())
    answer = intake.hello(Hello(version=VERSION - 1, tokenizer="", vocab_size=VOCAB))
    assert isinstance(answer, Fault) and f"this BS speaks {VERSION}" in answer.reason
