"""Hinted windows: what is decoded stays the target's own, whatever is hinted and lost; hints follow what happens."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.intake import Intake, Offer
from testbed.bs.judging.base import StrictJudge
from testbed.bs.metrics import Metrics
from testbed.bs.observer import Observer
from testbed.bs.pending import Round
from testbed.bs.scheduling import window_hints
from testbed.bs.scheduling.base import Fcfs
from testbed.bs.scheduling.estimator_online import OnlineEstimator
from testbed.bs.scheduling.hints import Hint
from testbed.bs.scheduling.window_hints import COUNTED, LEARNT_AT_ONCE, Mean, Rate, Windows, window_config
from testbed.bs.server import BaseStation
from testbed.bs.sessions import Session, SessionTable
from testbed.bs.verdict import Verdicts
from testbed.channel.csi import Csi
from testbed.channel.frames import Frames
from testbed.channel.link_model import Direction, constant
from testbed.channel.virtual import VirtualServerLink
from testbed.clock import WallClock
from testbed.errors import BadInput, ProtocolError
from testbed.experiments.deployment.profiled import ProfilePace, ProfileRunner
from testbed.experiments.inputs.profile import LinearDraft, LinearVerify, Profile
from testbed.optim.draft_window.controller import WindowConfig
from testbed.optim.draft_window.cost import LinkCosts, prices
from testbed.optim.pass_time import Coefficients, PassOverhead
from testbed.protocols import PROTOCOLS, protocol
from testbed.protocols.base import Window
from testbed.protocols.messages import NO_HINT, Open
from testbed.ue.client import Client
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.records import RequestRecord
from testbed.ue.session import DecodingSession as UeSession
from testbed.ue.target_only import decode_remotely
from testbed.ue.windows.base import WindowPolicy
from testbed.ue.windows.fixed import FixedWindow
from testbed.ue.windows.hinted import Hinted
from testbed.virtual_time import VirtualClock, run_virtually

VOCAB, TOKENS = 512, 40
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
PROFILE = Profile(
    name="test", about="", source="", draft=LinearDraft(per_token_s=0.01, prefill_per_token_s=0.001),
    verify=LinearVerify(base_s=0.02, per_new_s=0.001),
)  # fmt: skip


@dataclass
class Scripted:
    """Stands in for `Windows`: hints one after the other, the last for ever."""

    hints: Sequence[int]
    given: list[int] = field(default_factory=list)
    times_s: list[tuple[str, float]] = field(default_factory=list)
    """When it hinted and learnt."""

    def hint(self, session: Session, round_: Round, accepted: int, now_s: float) -> Hint:
        if not session.hinted:
            return Hint()
        self.times_s.append(("hint", asyncio.get_running_loop().time()))
        self.given.append(self.hints[min(len(self.given), len(self.hints) - 1)])
        return Hint(self.given[-1])

    def threshold(self, session: Session) -> float:
        return session.threshold

    def learn(self, overhead: PassOverhead) -> bool:
        """Nothing to learn."""
        self.times_s.append(("learn", asyncio.get_running_loop().time()))
        return False

    def ended(self, session: Session) -> None:
        pass

    def snapshot(self) -> dict[str, Any]:
        return {}


def run(
    windows: Any,
    act: Callable[[Client, VirtualClock], Any],
    lose: Callable[[], bool] = lambda: False,
    keep: dict[str, Any] | None = None,
    estimator: OnlineEstimator | None = None,
) -> Any:
    """A BS and one client in virtual time; `lose` says of each message of a session whether it is lost."""

    async def main() -> Any:
        clock, server = VirtualClock(), VirtualServerLink()
        engine = SyntheticEngine(vocab_size=VOCAB)
        intake = Intake(Offer("synthetic", "", VOCAB, engine.hidden_size, (), engine.max_positions), SessionTable())
        bs = BaseStation(
            server, ProfileRunner(engine, PROFILE, clock), intake, Fcfs(), StrictJudge(), clock,
            windows=windows, estimator=estimator,
        )  # fmt: skip
        serving = asyncio.create_task(bs.serve())
        ways = [Direction(constant(delay_s=0.01)) for _ in range(2)]
        client = Client(server.attach(b"ue", *ways), clock, 0, 600.0)
        await client.connect("", VOCAB)
        _lossy(client, server, lose)
        try:
            return await act(client, clock)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            if keep is not None:
                keep["metrics"], keep["sessions"] = bs.metrics(), len(intake.sessions)
            await client.close()

    return run_virtually(main())


def _lossy(client: Client, server: VirtualServerLink, lose: Callable[[], bool]) -> None:
    up, down = client._link.send, server.send

    async def send(frames: Frames) -> int:
        return sum(map(len, frames)) if lose() else await up(frames)

    async def answer(peer: bytes, frames: Frames) -> None:
        if not lose():
            await down(peer, frames)

    client._link.send, server.send = send, answer  # type: ignore[method-assign]


def decode(
    client: Client, clock: VirtualClock, kind: str, policy: WindowPolicy, alpha: float = 0.7, tokens: int = TOKENS
) -> Any:
    drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=alpha)
    session = UeSession(client, drafter, protocol(kind), policy, pace=ProfilePace(PROFILE, clock))
    return session.decode(PROMPT, tokens, ())


def target() -> list[int]:
    return run(None, lambda client, _: decode_remotely(client, PROMPT, TOKENS, ())).token_ids


OWN = target()


# ---------------------------------------------------------------- decoding alone in the middle of a session


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.sampled_from(sorted(set(PROTOCOLS) - {"split"})))
def test_whatever_is_hinted_the_output_is_the_target_s(hints: list[int], kind: str) -> None:
    scripted = Scripted(hints)
    found: RequestRecord = run(scripted, lambda client, clock: decode(client, clock, kind, Hinted(FixedWindow(4))))
    assert found.token_ids == OWN
    assert [r.round for r in found.rounds] == list(range(len(found.rounds)))
    for before, after in zip(found.rounds, found.rounds[1:], strict=False):
        assert (after.drafted == 0) is (before.hint == 0)
        assert after.drafted <= max(1, min(before.hint, 4)) if before.hint else after.uplink_bytes == 0
        assert after.committed == after.accepted + 1 or after is found.rounds[-1]
    assert sum(r.committed for r in found.rounds) == TOKENS


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_lost_messages_lose_nothing(seed: int, hints: list[int]) -> None:
    """One in ten, either way: drafts, verdicts in the middle of a stream, openings."""
    dice = random.Random(seed)
    policy = Hinted(FixedWindow(3))
    found = run(
        Scripted(hints), lambda client, clock: decode(client, clock, "greedy", policy), lambda: dice.random() < 0.1
    )
    assert found.token_ids == OWN


def test_a_stream_takes_passes_alone_and_catching_up_takes_the_drafter_s_time() -> None:
    found = run(Scripted([0] * 10 + [4]), lambda c, clock: decode(c, clock, "greedy", Hinted(FixedWindow(4)), 1.0))
    alone = [r for r in found.rounds if not r.drafted]
    assert len(alone) == 10
    for r in alone:
        assert (r.draft_s, r.wasted_s, r.accepted, r.committed) == (0.0, 0.0, 0, 1)
        assert r.link_s + r.queue_s + r.verify_s + r.overhead_s == pytest.approx(0.021, abs=1e-6)
    after = found.rounds[found.rounds.index(alone[-1]) + 1]
    assert after.draft_s == pytest.approx(10 * 0.001 + 4 * 0.01)  # what was missed, and the window


def test_where_speculation_is_off_the_next_session_begins_alone_and_costs_what_target_only_does() -> None:
    policy = Hinted(FixedWindow(4))

    async def act(client: Client, clock: VirtualClock) -> list[RequestRecord]:
        first = await decode(client, clock, "greedy", policy)
        second = await decode(client, clock, "greedy", policy)
        return [first, second, await decode_remotely(client, PROMPT, TOKENS, ())]

    first, second, own = run(Scripted([0]), act)
    assert first.rounds[0].drafted == 4 and policy.off
    assert [r.drafted for r in second.rounds] == [0] * TOKENS
    assert second.token_ids == OWN and second.latency_s == pytest.approx(own.latency_s)


def test_a_bs_that_gives_no_hints_leaves_the_window_as_it_is() -> None:
    found = run(None, lambda client, clock: decode(client, clock, "greedy", Hinted(FixedWindow(4)), 1.0))
    assert {r.drafted for r in found.rounds[:-1]} == {4} and {r.hint for r in found.rounds} == {NO_HINT}


def test_a_ue_that_wants_no_hints_gets_none() -> None:
    found = run(Scripted([0]), lambda client, clock: decode(client, clock, "greedy", FixedWindow(4)))
    assert found.token_ids == OWN and {r.hint for r in found.rounds} == {NO_HINT}


def test_rules_that_stop_earlier_act_below_the_hint() -> None:
    class Two(FixedWindow):
        def keep_drafting(self, drafted: Sequence[Any]) -> bool:
            return len(drafted) < 2

    policy = Hinted(Two(8))
    found = run(Scripted([1, 5, 8]), lambda client, clock: decode(client, clock, "greedy", policy, 1.0))
    assert [r.drafted for r in found.rounds[:4]] == [2, 1, 2, 2]
    assert policy.max_window == 8 and policy.fresh().max_window == 8


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"window": -1}, "window must lie in 0..2147483647, not -1"),
        ({"window": 4}, "max_tokens"),
        ({"window": 4, "max_tokens": 5, "protocol": "target-only"}, "sessions that draft"),
        ({"alone": True}, "with hints only"),
        ({"window": 4, "max_tokens": 5, "alone": True, "protocol": "split"}, "never under split"),
    ],
)
def test_wishes_that_do_not_hold_together_are_refused(fields: dict[str, Any], said: str) -> None:
    intake = Intake(Offer("m", "", VOCAB, 4, (), 100), SessionTable())
    message = Open(**{"session": 1, "protocol": "greedy", "threshold": 0.0, "hidden_size": 4, **fields})
    with pytest.raises(ProtocolError, match=said):
        intake.open(b"ue", message, {"ids": np.array([1, 2], np.int32)})


# ---------------------------------------------------------------- hints


def serve(
    windows: Windows, speed_s: float, rounds: int, *, csi: Csi | None = None, kind: str = "greedy", alpha: float = 0.8,
    network_s: float = 0.01, seed: int = 0, peer: bytes = b"ue", hinted: int = 8, request_s: float = 0.0,
) -> list[int]:  # fmt: skip
    """Rounds of one long session, one every `speed_s`, with accepted tokens by coins; the hints."""
    random = np.random.default_rng(seed)
    session = Session((peer, 1), "s", np.zeros(8, np.int32), 8, PROTOCOLS[kind], 0.0, 64)
    session.hinted = hinted
    hints, window, now_s = [], hinted, 0.0
    for number in range(rounds):
        rejected = np.flatnonzero(random.random(window) >= alpha)
        accepted = int(rejected[0]) if rejected.size else window
        round_ = Round(number, Window(np.zeros(window, np.int32), None), csi, now_s)
        round_.draft_s, round_.network_s = window * 0.005, network_s if number else 0.0
        round_.new, round_.cached = window + 1 + (200 if not number else 0), 200 if number else 0
        session.got += accepted + 1
        now_s += speed_s
        window = windows.hint(session, round_, accepted, now_s).window
        windows.learn(PassOverhead(0.0, request_s))
        hints.append(window)
    return hints


def controller(text: str = "on", **passes: float) -> Windows:
    known = Coefficients(**{"a": 1e-4, "b_compute": 1e-8, "b_read": 1e-6, "c": 0.02, **passes})
    return Windows(window_config(text), lambda: known, 64, VOCAB)


def test_a_hint_is_given_at_once_and_learnt_from_later() -> None:
    windows = controller()
    serve(windows, 0.05, 20)
    session = Session((b"ue", 2), "t", np.zeros(8, np.int32), 8, PROTOCOLS["greedy"], 0.0, 64)
    session.hinted, session.got = 8, 5
    before = windows.snapshot()
    hint = windows.hint(session, Round(0, Window(np.zeros(4, np.int32), None), None, 1.0), 4, 1.0).window
    given = windows.snapshot()
    assert given.pop("hints")[str(hint)] == before["hints"].pop(str(hint), 0) + 1
    del before["hints"]
    assert given == before
    windows.learn()
    learnt = windows.snapshot()
    assert learnt["load_tps"] != before["load_tps"]
    windows.learn()
    assert windows.snapshot() == learnt


async def test_many_rounds_are_learnt_from_while_other_tasks_run() -> None:
    windows = controller("max_window=256")
    ledger: Any = SimpleNamespace(learn=lambda: None, overhead=PassOverhead(0.0, 0.0))
    verdicts: Any = Verdicts(ledger, Metrics(), windows, Observer(), WallClock())
    for number in range(64):
        session = Session((b"ue", number), "t", np.zeros(8, np.int32), 8, PROTOCOLS["greedy"], 0.0, 64)
        session.hinted, session.got = 1 + 4 * number, 5
        windows.hint(session, Round(0, Window(np.zeros(4, np.int32), None), None, 1.0), 4, 1.0)
    verdicts.learn()
    left = [len(windows._later)]
    while left[-1]:
        await asyncio.sleep(0)
        left.append(len(windows._later))
    assert left[0] == 64 - LEARNT_AT_ONCE
    assert max(before - after for before, after in pairwise(left)) <= LEARNT_AT_ONCE


def test_where_ues_wait_for_the_next_pass_it_is_learnt_half_way_through_that_pass() -> None:
    windows, passes = Scripted([0]), OnlineEstimator(Coefficients(0.0, 0.0, 0.0, 0.02))
    run(windows, lambda c, clock: decode(c, clock, "greedy", Hinted(FixedWindow(4))), estimator=passes)
    streamed = [at for at, (what, _) in enumerate(windows.times_s) if what == "hint"][2:-1]
    assert len(streamed) > 10
    for at in streamed:
        (_, hinted_s), (what, learnt_s) = windows.times_s[at : at + 2]
        assert what == "learn" and 0.25 < (learnt_s - hinted_s) / 0.021 < 0.75
    assert passes.passes > 10


def test_a_response_begins_at_the_load_of_now_not_at_that_of_the_ue_s_last_one() -> None:
    windows = controller()
    serve(windows, 2.0, 50)
    known = next(iter(windows._ues.values())).controller
    calm = known.load
    for number in range(8):
        serve(windows, 0.02, 200, peer=b"ue%d" % number)
    assert known.load == calm
    serve(windows, 0.02, 1)
    assert known.load > 5 * calm


def test_the_hint_is_the_cheapest_window_at_what_was_seen() -> None:
    windows = controller("max_window=8,memory=1000")
    hints = serve(windows, 1.0, 800)
    costs = windows._shape.costs(Coefficients(1e-4, 1e-8, 1e-6, 0.02), 0.005, 64)
    assert costs.draft_s == 0.005 and costs.verify_request_s == pytest.approx(2e-4, rel=1e-6)
    assert costs.verify_token_s == pytest.approx(1.02e-4) and costs.prefill_s == pytest.approx(0.0204, rel=0.01)
    found = [p.time_s for p in prices(costs, 0.8, 3.0, LinkCosts(0.01, 0.0), 8)]
    assert found[hints[-1]] <= 1.02 * min(found) and 2 <= hints[-1] <= 6


def test_a_ue_whose_first_drafts_were_bad_luck_is_not_left_without_speculation() -> None:
    """Its own estimate says 0 when it is turned off; what others accept turns it on again."""
    windows = controller("max_window=8", c=0.03)
    unlucky = serve(windows, 0.05, 12, alpha=0.0, peer=b"unlucky")
    for number in range(4):
        serve(windows, 0.05, 200, alpha=0.9, peer=b"ue%d" % number)
    assert unlucky[-1] <= 1 and serve(windows, 0.05, 400, alpha=0.9, peer=b"unlucky")[-1] >= 3


def test_what_rounds_take_between_passes_asks_for_larger_windows() -> None:
    """A BS that is busy with each round beside its passes has fewer of them where windows are larger."""
    last = {}
    for request_s in (0.0, 0.02):
        windows = controller("max_window=8,memory=1000,load_memory=1")
        costs = windows._shape.costs(Coefficients(1e-4, 1e-8, 1e-6, 0.02), 0.005, 64, PassOverhead(0.003, request_s))
        assert costs.verify_request_s == pytest.approx(request_s) and costs.verify_base_s == pytest.approx(0.023)
        last[request_s] = serve(windows, 0.03, 1500, request_s=request_s)[-1]
    assert last[0.0] < last[0.02]


def test_load_turns_speculation_off_where_tokens_are_dear_and_on_where_requests_are() -> None:
    dear = serve(controller(a=0.004), 0.012, 600)
    assert dear[-1] < serve(controller(a=0.004), 2.0, 600)[-1]
    near = serve(controller(a=0.004, c=0.001), 0.004, 600, network_s=0.05)
    assert near[-1] == 0


def test_another_ue_s_accepted_tokens_are_no_load() -> None:
    """A UE that knew the target's output committed 257 tokens per round, which stood for 75 rounds of the others."""
    loads = []
    for accepted in (0, 256):
        windows, dice = controller("max_window=8"), np.random.default_rng(3)
        liar, one, two = [
            Session((name.encode(), 1), name, np.zeros(8, np.int32), 8, PROTOCOLS["greedy"], 0.0, 64, hinted=hinted)
            for name, hinted in (("liar", 0), ("one", 8), ("two", 8))
        ]
        for step in range(600):
            now_s = 0.06 * (step + 1)
            seen = [(liar, 256, accepted)] * 4
            seen += [(honest, 8, min(int(dice.geometric(0.2)) - 1, 8)) for honest in (one, two)]
            for session, drafted, kept in seen:
                round_ = Round(step, Window(np.zeros(drafted, np.int32), None), None, now_s)
                round_.draft_s, round_.new, round_.cached = 0.005 * drafted, drafted + 1, 200
                session.got += kept + 1
                windows.hint(session, round_, kept, now_s)
            while windows.learn():
                pass
        loads += [ue.controller.load for ue in windows._ues.values()]
    committed = (1 - 0.8**9) / (1 - 0.8)
    assert loads[:2] == pytest.approx([(2 * committed + 4) / 0.06] * 2, rel=0.15)
    assert loads[2:] == pytest.approx([(2 * committed + 4 * COUNTED) / 0.06] * 2, rel=0.15)


def test_a_slow_uplink_asks_for_smaller_windows_and_a_far_one_for_larger() -> None:
    def last(csi: Csi, network_s: float, kind: str) -> int:
        return serve(controller("least_window=1"), 1.0, 400, csi=csi, network_s=network_s, kind=kind)[-1]

    far = last(Csi(100, 100, 300), 0.3, "greedy")
    slow = last(Csi(1.0, 100, 300), 0.3, "fh")  # 64 elements of 16 bits: a millisecond a token
    slower = last(Csi(0.05, 100, 10), 0.03, "fh")
    assert far >= slow > slower
    assert far > last(Csi(100, 100, 10), 0.01, "greedy")


def test_split_is_never_told_to_do_without_drafts() -> None:
    assert 0 in serve(controller(), 1.0, 300, network_s=2.0)
    assert 0 not in serve(controller(), 1.0, 300, network_s=2.0, kind="split")


def test_hints_keep_to_what_the_ue_drafts_at_most_and_ues_are_told_apart() -> None:
    windows = controller("max_window=16", c=0.1)
    assert max(serve(windows, 1.0, 100, hinted=3, alpha=1.0)) <= 3
    far = serve(windows, 1.0, 400, peer=b"far", network_s=0.3, alpha=0.9, hinted=16)
    near = serve(windows, 1.0, 400, peer=b"near", network_s=0.001, alpha=0.5, hinted=16)
    assert far[-1] > near[-1]
    counted = windows.snapshot()
    assert sum(counted["hints"].values()) == 900 and 0 < counted["acceptance"] < 1 and counted["load_tps"] > 0


def test_a_ue_with_many_identities_and_windows_leaves_the_controllers_of_idle_ues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(window_hints, "MOST_OF_UE", 4)
    monkeypatch.setattr(window_hints, "MOST_UES", 6)
    known = Coefficients(1e-4, 1e-8, 1e-6, 0.02)
    windows = Windows(WindowConfig(), lambda: known, owner=lambda peer: peer[:1])
    for peer in (b"honest", b"other"):
        serve(windows, 1.0, 20, peer=peer)
    honest = {peer: ue for (peer, *_), ue in windows._ues.items()}
    for number in range(40):
        serve(windows, 1.0, 1, peer=b"liar%d" % (number % 8), hinted=1 + number)
    kept = {peer: ue for (peer, *_), ue in windows._ues.items()}
    assert all(kept[peer] is ue for peer, ue in honest.items()) and len(windows._ues) == 6
    for ue in kept.values():
        ue.controller.switches = 3
    for number in range(40):
        serve(windows, 1.0, 1, peer=b"liar%d" % (number % 8), hinted=1 + number)
    assert windows.snapshot()["window_switches"] >= 3 * len(kept)  # a counter: it fell
    for number in range(40):  # beyond the controller's largest window, all are one
        serve(windows, 1.0, 1, peer=b"honest", hinted=300 + number)
    assert sum(peer == b"honest" for peer, *_ in windows._ues) <= 2


def test_means_and_rates_are_right_from_the_start_on() -> None:
    mean, rate = Mean(10), Rate(5.0)
    for value in (1.0, 2.0, 6.0):
        mean.add(value)
    assert mean.value == pytest.approx(3.0)
    found = [rate.add(4, i * 0.1) for i in range(1, 400)]
    assert found[20:] == pytest.approx([40.0] * len(found[20:]), rel=0.35)
    assert found[-1] == pytest.approx(40.0, rel=0.03)
    assert rate.add(4, 39.9 + 50) < 2.0
    assert 0 < rate.add(4, 1.0) < 4.0  # a clock that steps back


NUMBERS = st.floats(0, 86_400, allow_subnormal=True)


@given(memory=st.floats(1, 300), added=st.lists(st.tuples(NUMBERS, st.floats(0, 1e4)), min_size=1, max_size=8))
def test_a_mean_stays_within_its_values(memory: float, added: list[tuple[float, float]]) -> None:
    mean = Mean(memory)
    for value, weight in added:
        mean.add(value, weight)
    assert 0 <= mean.value <= max(value for value, _ in added) * (1 + 1e-12)


@pytest.mark.parametrize("text", ["off", "max_window", "max_window=0", "max_window=x", "windows=3", ""])
def test_a_controller_that_cannot_be_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        window_config(text)
    assert "\n" not in str(refused.value)


def test_a_controller_is_named_by_its_fields() -> None:
    assert window_config("on") == WindowConfig()
    assert window_config("max_window=4, hysteresis=0.05") == WindowConfig(max_window=4, hysteresis=0.05)


def test_many_ues_in_virtual_time_under_the_real_controller() -> None:
    """End to end: metrics count the hints, and sessions are gone in the end."""
    keep: dict[str, Any] = {}
    windows = controller("max_window=4")

    async def act(client: Client, clock: VirtualClock) -> list[RequestRecord]:
        policy = Hinted(FixedWindow(4))
        return list(await asyncio.gather(*(decode(client, clock, "greedy", policy) for _ in range(6))))

    found = run(windows, act, keep=keep)
    assert all(record.token_ids == OWN for record in found)
    assert sum(keep["metrics"]["hints"].values()) == sum(len(record.rounds) for record in found)
    assert keep["metrics"]["window_switches"] >= 1
