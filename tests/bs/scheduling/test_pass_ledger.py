"""The scheduler's view of a session, compared with cases worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from testbed.bs.engines.base import Share, VerifyRequest, VerifyResult
from testbed.bs.metrics import Metrics
from testbed.bs.pending import Pending, Round
from testbed.bs.queue import Taken
from testbed.bs.scheduling.admission import Admission
from testbed.bs.scheduling.base import Fcfs, Scheduler
from testbed.bs.scheduling.estimator_online import OnlineEstimator
from testbed.bs.scheduling.pass_ledger import PassLedger
from testbed.bs.scheduling.slo import Slo
from testbed.bs.sessions import Session, SessionTable
from testbed.experiments.inputs.profile import InteractionVerify
from testbed.optim.pass_time import Coefficients
from testbed.protocols import protocol
from testbed.protocols.base import Window
from testbed.protocols.messages import Open
from testbed.protocols.sampling import Kept
from tests.support.fleet import Fleet, serve_fleet

PASS_S = 0.05
ZEROS = np.zeros(6, np.float32)
RESULT = VerifyResult(ZEROS.astype(np.int32), ZEROS, ZEROS[1:])
CONSTANT = InteractionVerify(a_s=0, b_compute_s=0, b_read_s=0, c_s=PASS_S)
ALONE = Fleet(
    verify=CONSTANT, draft_s=0.02, network_s=0.04, window=5, alpha=1.0, prompt=(100, 100), output=(60, 60),
    spread_s=0, until_s=0.5,
)  # fmt: skip


class Recorder(Scheduler):
    """Remembers all that it was shown."""

    def __init__(self) -> None:
        self.seen: list[Pending] = []

    def plan(self, pending: Sequence[Pending], now_s: float) -> list[Pending]:
        self.seen += pending
        return list(pending)


def opened(table: SessionTable, speed_tps: float | None = None, length: int = 100) -> Session:
    prefix = np.zeros(length, np.int32)
    return table.open((b"ue", 1), prefix, protocol("greedy"), 0.0, 64, 0, speed_tps=speed_tps)


def a_round(number: int, drafted: int, arrived_s: float, draft_s: float = 0.0, network_s: float = 0.0) -> Round:
    return Round(
        number, Window(np.zeros(drafted, np.int32), None), None, arrived_s, draft_s=draft_s, network_s=network_s
    )


def ask(session: Session, round_: Round) -> VerifyRequest:
    session.current = round_
    return VerifyRequest(session.name, session.prefix, round_.window.ids)


def test_rounds_of_a_ue_by_hand() -> None:
    """100 ms of drafting, 20 ms up, 50 ms of verifying, 20 ms down: a round takes 190 ms and commits 6 tokens."""
    recorder = Recorder()
    served = serve_fleet(ALONE, [8.0], recorder)
    assert len(recorder.seen) == len(served.responses[0].record.rounds) == 10
    start_s = recorder.seen[0].arrived_s - 0.12
    for k, item in enumerate(recorder.seen):
        assert item.speed_tps == 8.0
        assert item.arrived_s == pytest.approx(start_s + 0.19 * k + 0.12)
        assert item.draft_s == pytest.approx(0.1)
        assert item.network_s == pytest.approx(0.04 if k else 0.0)
        assert item.ahead_s == pytest.approx(6 * k / 8 - 0.19 * k)
        assert item.acceptance == (None if k == 0 else 1.0)
        assert (item.cached_tokens, item.new_tokens) == ((0, 105) if k == 0 else (100 + 6 * k - 1, 6))
    slo = Slo(coefficients=Coefficients(0, 0, 0, PASS_S))
    third = recorder.seen[2]
    # 6 tokens at 8 a second, less 100 ms and 40 ms, and half of what is ahead: 0.75 - 0.14 + (1.5 - 0.38) / 2
    assert slo.deadline_s(third, slo.expected(third)) - third.arrived_s == pytest.approx(1.17)
    assert served.metrics["promised_rounds"] == {"8": 10} and served.metrics["missed_deadlines"] == {"8": 0}


def test_what_comes_late_is_counted_by_class() -> None:
    slow = InteractionVerify(a_s=0, b_compute_s=0, b_read_s=0, c_s=1.0)
    fleet = Fleet(verify=slow, alpha=1.0, output=(60, 60), spread_s=0, until_s=0.5)
    served = serve_fleet(fleet, [2.0, 20.0, None], Fcfs())
    assert served.metrics["promised_rounds"] == {"2": 10, "20": 10}
    assert served.metrics["missed_deadlines"] == {"2": 0, "20": 10}


def test_a_margin_is_a_faster_promise() -> None:
    table = SessionTable()
    session = opened(table, 8.0)
    ledger = PassLedger(table, Fcfs(), margin=0.25)
    ledger.pending(session, first := a_round(0, 5, 10.0, 0.5), ask(session, first))
    session.append(np.zeros(20, np.int32))
    later = a_round(1, 5, 12.0, 0.4)
    item = ledger.pending(session, later, ask(session, later))
    assert item.speed_tps == 10.0
    assert item.ahead_s == pytest.approx(20 / 10 - (12.0 - 0.4 - (10.0 - 0.5)))


def test_a_session_that_is_opened_anew_begins_its_promise_anew() -> None:
    table = SessionTable()
    ledger = PassLedger(table, Fcfs())
    for arrived_s in (3.0, 50.0):
        session = opened(table, 4.0)
        first = a_round(0, 5, arrived_s, 0.1)
        assert ledger.pending(session, first, ask(session, first)).ahead_s == 0
        session.append(np.zeros(3, np.int32))
    assert table.promised() == {4.0: 1}


def test_acceptance_is_drawn_from_the_sessions_of_a_ue_to_ones_own() -> None:
    table = SessionTable()
    session = opened(table)
    ledger = PassLedger(table, Fcfs())
    rate = []
    for k in range(40):
        round_ = a_round(k, 4, float(k))
        rate.append(ledger.pending(session, round_, ask(session, round_)).acceptance)
        ledger.settled(session, round_, Kept(3, 7))
    assert rate[0] is None
    assert rate[1:] == pytest.approx([0.75] * 39, abs=1e-3)
    again = table.open((b"ue", 2), np.zeros(9, np.int32), protocol("greedy"), 0.0, 64, 0)
    first = a_round(0, 4, 40.0)
    assert ledger.pending(again, first, ask(again, first)).acceptance == pytest.approx(0.75, abs=1e-3)
    other = table.open((b"other", 1), np.zeros(9, np.int32), protocol("greedy"), 0.0, 64, 0)
    for k in range(40):
        round_ = a_round(k, 4, float(k))
        last = ledger.pending(other, round_, ask(other, round_)).acceptance
        assert last is None if k == 0 else last == pytest.approx(0.0)
        ledger.settled(other, round_, Kept(0, 7))
    assert ledger.pending(session, first, ask(session, first)).acceptance == pytest.approx(0.75, abs=1e-3)


def test_a_claimed_past_counts_as_far_as_it_was_seen() -> None:
    """A claim of a day made each round of the session due at once."""
    table = SessionTable()
    ledger = PassLedger(table, Fcfs())
    session = opened(table, 4.0)
    session.free_s = 100.0
    first = ledger.pending(session, round_ := a_round(0, 5, 100.3, 86_400.0, 86_400.0), ask(session, round_))
    assert (first.draft_s, first.network_s, first.ahead_s) == (pytest.approx(2.3), 0.0, 0.0)
    session.append(np.zeros(3, np.int32))
    session.free_s = 100.5
    second = ledger.pending(session, round_ := a_round(1, 5, 100.9, 86_400.0, 86_400.0), ask(session, round_))
    assert (second.draft_s, second.network_s) == (pytest.approx(0.4), pytest.approx(0.0))
    assert second.ahead_s == pytest.approx(3 / 4 - (100.5 - 98.0))
    honest = ledger.pending(session, round_ := a_round(1, 5, 100.9, 0.3, 0.1), ask(session, round_))
    assert (honest.draft_s, honest.network_s) == (pytest.approx(0.3), pytest.approx(0.1))


@pytest.mark.parametrize(("hidden", "came_s"), [(False, 0.0), (True, 0.0), (True, 1.9)])
def test_a_ue_that_dawdles_is_owed_two_seconds_at_most(hidden: bool, came_s: float) -> None:
    """Before its drafts, or before its hidden states: those counted for the round that waited for them alone, or made
    up for by a next window that had come ahead.
    """
    table = SessionTable()
    ledger = PassLedger(table, Fcfs())
    session, now_s, ahead_s = opened(table, 4.0), 100.0, []
    for k in range(60):
        session.free_s = now_s
        late_s = (came_s or 30.0) if k < 20 else 0.0
        own_s = 0.0 if came_s else 0.3 if hidden else max(late_s, 0.3)
        now_s += own_s
        item = ledger.pending(session, round_ := a_round(k, 5, now_s - came_s, own_s), ask(session, round_))
        ahead_s.append(item.ahead_s)
        if hidden:
            round_.waited_s = late_s
            ledger.waited(session, round_)
            now_s += late_s
        session.append(np.zeros(3, np.int32))
        now_s += 0.05  # pass
    assert min(ahead_s) > -2 - 21 * 0.05 - 21 * 0.2  # its lag, passes, and tokens below those expected of a round
    assert ahead_s[-1] > ahead_s[21] and max(ahead_s[:20]) < 3


@pytest.mark.parametrize(
    ("block", "accepted", "computed"), [(1, 0, 100), (1, 5, 105), (16, 0, 96), (16, 5, 96), (16, 12, 112), (32, 12, 96)]
)
def test_only_whole_blocks_stay_in_the_cache(block: int, accepted: int, computed: int) -> None:
    table = SessionTable()
    session = opened(table)
    ledger = PassLedger(table, Fcfs(), block_size=block)
    round_ = a_round(0, 12, 0.0)
    ask(session, round_)
    ledger.settled(session, round_, Kept(accepted, 7))
    assert session.computed == computed


def test_evicted_tokens_are_counted_and_the_estimator_sees_what_was_computed() -> None:
    table = SessionTable()
    session = opened(table)
    ledger = PassLedger(table, Fcfs())
    session.computed = 90
    round_ = a_round(0, 5, 0.0)
    item = ledger.pending(session, round_, ask(session, round_))
    counted = Metrics()
    for cached in (90, 90, 30, 96):
        share = Share(item.request, 105 - cached, cached, RESULT)
        counted.add_pass(ledger.passed([(Taken(session, item, whole=True), share)], 0.5))
    metrics = counted.snapshot()
    assert metrics["evicted_tokens"] == 60
    assert metrics["cached_tokens"] == 90 + 90 + 30 + 96
    assert metrics["computed_tokens"] == 4 * 105 - metrics["cached_tokens"]
    assert metrics["passes"] == metrics["rounds"] == 4 and metrics["batch_sizes"] == {"1": 4}
    assert metrics["busy_s"] == 2.0


@pytest.mark.parametrize(
    ("scheduler", "at_once"), [(Fcfs(), False), (Slo(coefficients=Coefficients(0, 0, 0, PASS_S)), True)]
)
def test_passes_are_learnt_from_when_there_is_time_or_where_batches_are_planned_by_them(
    scheduler: Scheduler, at_once: bool
) -> None:
    table = SessionTable()
    session = opened(table)
    estimator = OnlineEstimator(Coefficients(0, 0, 0, PASS_S))
    ledger = PassLedger(table, scheduler, estimator)
    round_ = a_round(0, 5, 0.0)
    batch = [Taken(session, ledger.pending(session, round_, ask(session, round_)), whole=True)]
    assert ledger.expected_s(batch) == PASS_S
    for _ in range(3):
        ledger.passed([(batch[0], Share(batch[0].pending.request, 105, 0, RESULT))], 2 * PASS_S)
    assert estimator.passes == (3 if at_once else 0)
    ledger.learn()
    ledger.learn()
    assert estimator.passes == 3 and ledger.expected_s(batch) > 1.5 * PASS_S


def test_a_prompt_in_pieces_is_one_round_and_nothing_of_it_was_evicted() -> None:
    """Three passes compute a prompt of 100 tokens and 5 drafted ones; the session is closed before the last."""
    table = SessionTable()
    session = opened(table)
    ledger, counted = PassLedger(table, Fcfs()), Metrics()
    round_ = a_round(0, 5, 0.0)
    taken = Taken(session, ledger.pending(session, round_, ask(session, round_)), whole=True)
    request = taken.pending.request
    for new, cached, kept in ((40, 0, 40), (40, 40, 80)):
        counted.add_pass(ledger.passed([(taken, Share(request, new, cached, None))], 0.5))
        assert (session.computed, round_.cached) == (kept, cached)
    assert round_.new == 80
    counted.add_pass(
        ledger.passed([(taken, Share(request, 25, 80, RESULT)), (None, Share(request, 3, 9, RESULT))], 0.5)
    )
    metrics = counted.snapshot()
    assert (metrics["rounds"], metrics["pieces"], metrics["evicted_tokens"]) == (1, 3, 0)
    assert (metrics["computed_tokens"], metrics["cached_tokens"]) == (108, 129) and round_.new == 105


def test_how_long_a_pass_may_last_follows_the_fastest_promise() -> None:
    table = SessionTable()
    slo = Slo(coefficients=Coefficients(0, 0, 0, PASS_S), patience_s=1.5, cuts=True)
    ledger = PassLedger(table, slo)

    def hold_s() -> float:
        ledger.passed([], 0.1)
        assert isinstance(ledger.scheduler, Slo) and ledger.scheduler.hold_s is not None
        return ledger.scheduler.hold_s

    assert hold_s() == pytest.approx(0.5)
    # before anything is measured: 3 tokens a round, 100 ms of drafting, 50 ms of network
    # a slow promise never lengthens passes, and one that its UE cannot keep leaves twice their constant
    for speed_tps, expected in ((1e-3, 0.5), (2.0, 1.35 / 3), (4.0, 0.6 / 3), (100.0, 2 * PASS_S)):
        session = table.open((b"ue", speed_tps), np.zeros(9, np.int32), None, 0.0, 1, 99, speed_tps=speed_tps)  # type: ignore[arg-type]
        assert hold_s() == pytest.approx(expected)
    table.close(session.key)
    assert hold_s() == pytest.approx(0.6 / 3)
    for left in list(table):
        table.close(left.key)
    # the sessions of the next requests would wait for long passes
    session = table.open((b"other", 1), np.zeros(9, np.int32), None, 0.0, 1, 99)
    item = replace(ledger.pending(session, a_round(0, 5, 0.0), ask(session, a_round(0, 5, 0.0))), work_s=3.0)
    for now_s, expected, turns in ((9.0, 0.6 / 3, True), (11.0, 0.5, False)):
        ledger.plan([item], now_s)
        assert hold_s() == pytest.approx(expected)
        assert [one.turn_s > 0 for one in ledger._last.pending] == [turns]  # else one with long windows has all passes


def test_admission_counts_everybody_else() -> None:
    table = SessionTable()
    times = Coefficients(a=1e-4, b_compute=0, b_read=0, c=0.04)
    admission = Admission(coefficients=times, max_requests=1)
    ledger = PassLedger(table, Fcfs(), admission=admission)
    message = Open(session=1, protocol="greedy", threshold=0.0, hidden_size=1, speed_tps=8.0)
    assert ledger.admit((b"ue", 1), message) is None
    opened(table, 8.0)
    assert ledger.admit((b"ue", 1), message) is None  # the same session again
    for i in range(6):
        table.open((b"ue", 2 + i), np.zeros(9, np.int32), None, 0.0, 1, 99, speed_tps=8.0)
    busy = ledger.admit((b"x", 1), message)
    # 8 sessions at 8 tokens/s and 3 tokens a round: 21 passes of 40 ms a second; with 4 or 6 the last one fits no more
    assert busy is not None and busy.speed_tps in (0.0, 2.0) and busy.retry_s > 0
    assert "8 tokens/s cannot be guaranteed beside 7 other sessions" in busy.reason
    silent = Open(session=1, protocol="greedy", threshold=0.0, hidden_size=1)
    assert ledger.admit((b"x", 1), silent) is None


@pytest.mark.parametrize(
    ("between_s", "waits", "admitted"), [(0.0, True, True), (0.01, True, False), (0.01, False, True)]
)
def test_promises_take_the_time_between_passes_as_well(between_s: float, waits: bool, admitted: bool) -> None:
    """Five sessions of 8 tokens/s, 3 tokens a round: 13.3 passes of 52 ms a second, 0.7 of the time; with 10 ms between
    them 0.83. Where the engine had nothing to do it was not the passes that took it.
    """
    table = SessionTable()
    times = Coefficients(a=0, b_compute=0, b_read=0, c=0.0525)
    ledger = PassLedger(table, Fcfs(), admission=Admission(coefficients=times, max_requests=1, limit=0.8))
    for i in range(4):
        table.open((b"ue", 2 + i), np.zeros(9, np.int32), None, 0.0, 1, 99, speed_tps=8.0)
    now_s = 0.0
    for _ in range(1000):
        arrived_s = now_s - 1 if waits else now_s
        waiting = Pending(VerifyRequest("s", np.zeros(9, np.int32), np.zeros(5, np.int32)), arrived_s, 8, 8.0)
        ledger.plan([waiting], now_s)
        ledger.passed([], 0.0525)
        now_s += 0.0525 + between_s
    message = Open(session=1, protocol="greedy", threshold=0.0, hidden_size=1, speed_tps=8.0)
    assert (ledger.admit((b"ue", 1), message) is None) == admitted
    assert ledger.overhead == pytest.approx((between_s if waits else 0.0, 0.0), rel=1e-3)


@pytest.mark.parametrize("at_once", [True, False])
def test_the_time_between_the_tokens_of_a_target_that_decodes_alone_counts(at_once: bool) -> None:
    """Its next round arrives when the one before it is judged: nobody waited, and the time was taken for the UE's."""
    ledger, request = (
        PassLedger(SessionTable(), Fcfs()),
        VerifyRequest("s", np.zeros(9, np.int32), np.zeros(0, np.int32)),
    )
    now_s = 0.0
    for _ in range(100):
        ledger.plan([Pending(request, now_s, 8, at_once=at_once)], now_s)
        ledger.passed([(None, Share(request, 1, 9, None))], 0.02)
        now_s += 0.021
    assert sum(ledger.overhead) == pytest.approx(0.001 if at_once else 0.0, rel=1e-3)


def test_large_batches_of_others_leave_a_promise_to_the_few_that_ask() -> None:
    """Answers take 1 ms a request. Most passes had 64 requests, without a guarantee: 64 ms between passes. A UE that
    asks for 8 tokens/s shares passes with few, after which there is 1 ms, and is admitted.
    """
    times = Coefficients(a=0, b_compute=0, b_read=0, c=0.07)
    ledger = PassLedger(SessionTable(), Fcfs(), admission=Admission(coefficients=times, max_requests=64))
    request = VerifyRequest("s", np.zeros(9, np.int32), np.zeros(5, np.int32))
    now_s = 0.0
    for index in range(1000):
        requests = 64 if index % 10 else 2
        ledger.plan([Pending(request, now_s - 1, 8)] * requests, now_s)
        ledger.passed([(None, Share(request, 5, 9, None))] * requests, 0.07)
        now_s += 0.07 + 0.001 * requests
    assert ledger.overhead == pytest.approx((0.0, 0.001), abs=1e-4)
    message = Open(session=1, protocol="greedy", threshold=0.0, hidden_size=1, speed_tps=8.0)
    assert ledger.admit((b"ue", 1), message) is None


def test_a_guarantee_that_cannot_be_kept_even_alone_makes_no_pass_short() -> None:
    """A UE whose own time took that of its guarantee had the prompts of others come in many pieces."""
    table = SessionTable()
    ledger = PassLedger(table, Fcfs(), OnlineEstimator(Coefficients(1e-3, 0.0, 0.0, 0.02)))
    table.open((b"slow", 1), np.zeros(9, np.int32), protocol("greedy"), 0.0, 64, 0, speed_tps=4.0)
    for slow_s in (0.8, 0.26):
        for ue, draft_s in ((b"slow", slow_s), (b"one", 0.05), (b"two", 0.05)):
            for _ in range(2000):
                ledger._averages.add(ue, (5.0, 9.0, 3.0, draft_s, 0.04), 1, 1, 5)
        rounds = ledger._averages.expected(b"slow" if slow_s == 0.26 else None)
        left_s = rounds.committed / 4 - rounds.draft_s - rounds.network_s
        assert ledger._budget_s() == pytest.approx(left_s) and left_s > 0.3


@pytest.mark.parametrize("speeds", [[8.0], [8.0, 0.01], [0.01, 8.0, 2.0]])
def test_passes_leave_each_ue_the_time_of_its_own_rounds(speeds: list[float]) -> None:
    """A second UE's guarantee, however low, had passes last as long as typical rounds allowed: those of a UE with few
    tokens in each were late.
    """
    table = SessionTable()
    ledger = PassLedger(table, Fcfs())
    for number, speed_tps in enumerate(speeds):
        ue = b"ue%d" % number
        table.open((ue, 1), np.zeros(9, np.int32), protocol("greedy"), 0.0, 64, 0, speed_tps=speed_tps)
        for _ in range(2000):
            committed = 2.0 if speed_tps == 8.0 else 4.0
            ledger._averages.add(ue, (5.0, 9.0, committed, 0.05, 0.04), 1, 1, 5)
    assert ledger._budget_s() == pytest.approx(2 / 8 - 0.05 - 0.04, rel=0.05)


def test_queues_at_the_last_plan_are_gauges() -> None:
    table = SessionTable()
    ledger = PassLedger(table, Slo(coefficients=Coefficients(0, 0, 0, PASS_S)))
    waiting = [
        Pending(VerifyRequest(str(i), np.zeros(9, np.int32), np.zeros(5, np.int32)), 10.0, 8, speed)
        for i, speed in enumerate((2.0, 2.0, 40.0))
    ]
    ledger.plan(waiting, 10.0)
    metrics = ledger.snapshot()
    assert (metrics["waiting"], metrics["urgent"], metrics["utility"]) == (3, 1, 2)


def test_a_controller_weighs_the_ues_of_a_base_station_with_keys() -> None:
    """It names them by their connections. Worths were looked up by the key alone, and had no effect."""
    table = SessionTable(owner=lambda peer: peer[:3])
    scheduler = Slo(coefficients=Coefficients(0.0, 0.0, 0.0, 1.0), worths={b"key/a": 4.0})
    ledger = PassLedger(table, scheduler)
    found = []
    for peer in (b"key/a", b"key/b"):
        session = table.open((peer, 1), np.zeros(9, np.int32), protocol("greedy"), 0.0, 64, 0)
        round_ = a_round(0, 3, 0.0)
        found.append(ledger.pending(session, round_, ask(session, round_)))
    assert [item.ue for item in found] == [b"key"] * 2
    scheduler = replace(scheduler, coefficients=Coefficients(0.01, 0.0, 0.0, 0.01))
    first, second = (scheduler._entry(item, 0.0).utility for item in found)
    assert first == pytest.approx(4 * second)
