"""A crowd comes to a busy base station and leaves again, in virtual time: who goes without, in which order."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from testbed.bs.scheduling.admission import Admission
from testbed.bs.scheduling.base import Fcfs, Scheduler
from testbed.bs.scheduling.estimator_online import OnlineEstimator
from testbed.bs.scheduling.slo import Slo
from testbed.bs.sessions import SessionTable
from testbed.errors import AdmissionError
from testbed.experiments.inputs.profile import InteractionVerify
from testbed.optim.pass_time import Coefficients
from testbed.synthetic import next_token
from tests.support.fleet import VOCAB, Fleet, Served, serve_visits
from tests.support.overload import CLASSES, KEPT, Phase, Response, check_order, phase

TABLE_12 = Coefficients(a=3.314e-5, b_compute=3.450e-8, b_read=4.620e-6, c=1.486e-2)
CAP = 1
"""Requests of a pass, so that few UEs are many: about 64 rounds a second, 210 tokens."""
STAY, GUESTS = 24, 60
"""UEs that ask for 120 tokens a second together, and those that make it 420."""
ARRIVE_S, LEAVE_S, END_S = 10.0, 28.0, 42.0
SETTLE_S = 4.0
FLEET = Fleet(prompt=(20, 60), output=(8, 16), spread_s=3.0, until_s=END_S)
CROWD = replace(FLEET, begin_s=ARRIVE_S, spread_s=0.5, until_s=LEAVE_S)


SEEDS = pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 5))])


def served(seed: int, scheduler: Scheduler, admission: Admission | None = None) -> Served:
    stay, crowd = replace(FLEET, seed=seed), replace(CROWD, seed=seed)
    visits = [(stay, CLASSES[i % 4]) for i in range(STAY)] + [(crowd, CLASSES[i % 4]) for i in range(GUESTS)]
    return serve_visits(visits, scheduler, margin=0.02, admission=admission)


def phases(found: Served, what: str, seed: int) -> tuple[Phase, Phase, Phase]:
    """Before the crowd, with it, and after it; they are printed."""
    seen = [
        Response(r.speed_tps or 0.0, r.ended_s - r.record.latency_s, r.ended_s, len(r.record.token_ids))
        for r in found.responses
    ]
    times = ((FLEET.spread_s, ARRIVE_S), (ARRIVE_S + 1, LEAVE_S), (LEAVE_S + SETTLE_S, 2 * END_S))
    before, during, after = (phase(seen, *time) for time in times)
    for name, one in (("before", before), ("during", during), ("after", after)):
        print(f"\n{what}, seed {seed}, {len(found.failures)} refusals, {name:6} {one}", end="")
    return before, during, after


def assert_lossless(found: Served) -> None:
    for response in found.responses:
        ids = list(response.prompt)
        for token in response.record.token_ids:
            assert token == next_token(ids, VOCAB, 0)
            ids.append(token)


@SEEDS
def test_a_crowd_takes_promises_in_order_of_class_and_leaves_nothing_behind(seed: int) -> None:
    found = served(seed, Slo(coefficients=TABLE_12, max_requests=CAP))
    assert_lossless(found)
    assert not found.failures
    check_order(*phases(found, "slo", seed), refused=0, admission=False)


@SEEDS
def test_with_admission_the_crowd_is_refused_and_promises_hold_all_along(seed: int) -> None:
    slo = Slo(coefficients=TABLE_12, max_requests=CAP)
    found = served(seed, slo, Admission(coefficients=TABLE_12, max_requests=CAP))
    assert_lossless(found)
    assert all(isinstance(error, AdmissionError) for _, error in found.failures)
    check_order(*phases(found, "slo with admission", seed), refused=len(found.failures), admission=True)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_first_come_first_served_knows_no_order(seed: int) -> None:
    """Without guarantees all classes get the same speed, busy or not, and the fastest never the requested one."""
    found = served(seed, Fcfs(CAP))
    assert_lossless(found)
    before, during, after = phases(found, "fcfs", seed)
    speeds = [worth * speed for speed, worth in during.worth.items()]
    assert max(speeds) < 1.4 * min(speeds)
    assert before.slow[8.0] > KEPT and after.slow[8.0] > KEPT


SLOW_PASSES = Coefficients(a=1e-3, b_compute=1e-7, b_read=5e-6, c=5e-3)
"""A window of 64 tokens takes 70 ms."""
HOG_SESSIONS = 20


def beside_a_hog(polite: Fleet, hog: Fleet, sessions: int) -> Served:
    """A UE with 8 tokens/s guaranteed, beside another with this many sessions without a guarantee."""
    found = serve_visits(
        [(polite, 8.0), *[(hog, None)] * sessions],
        Slo(coefficients=SLOW_PASSES, cuts=True),
        estimator=OnlineEstimator(SLOW_PASSES),
        admission=Admission(coefficients=SLOW_PASSES, max_requests=256),
        sessions=SessionTable(owner=lambda peer: b"ue" if peer == b"ue-1" else b"hog"),
        margin=0.02,
    )
    assert_lossless(found)
    assert not found.failures
    return found


@SEEDS
@pytest.mark.parametrize("prompt", [(50, 250), (600, 1500)], ids=["windows", "prompts"])
def test_one_ues_sessions_without_a_guarantee_leave_another_its_own(prompt: tuple[int, int], seed: int) -> None:
    """A UE sends windows of 64 tokens in 20 sessions without a pause, after another got 8 tokens/s."""
    verify = InteractionVerify(*SLOW_PASSES.values)
    polite = Fleet(verify=verify, output=(100, 200), spread_s=0.5, until_s=15.0, seed=seed)
    hog = replace(polite, window=64, prompt=prompt, begin_s=0.6)
    found = beside_a_hog(polite, hog, HOG_SESSIONS)
    speeds = {
        ue: [len(r.record.token_ids) / r.record.latency_s for r in found.responses if r.ue == ue] for ue in range(21)
    }
    free = [speed for ue in range(1, 21) for speed in speeds[ue]]
    waits = [r.queue_s for response in found.responses for r in response.record.rounds]
    print(f"\nseed {seed}, {prompt}: guaranteed {min(speeds[0]):.1f} tokens/s, others {statistics.median(free):.2f}")
    assert min(speeds[0]) >= 8 and all(speeds.values()) and max(waits) < 60


@SEEDS
def test_prompts_that_came_before_a_guarantee_leave_it_its_speed(seed: int) -> None:
    """A UE sends 50 prompts of 3,700 tokens, two seconds before another gets 8 tokens/s: it had 0.7."""
    verify = InteractionVerify(*SLOW_PASSES.values)
    polite = Fleet(verify=verify, output=(100, 200), spread_s=0.5, begin_s=2.0, until_s=15.0, seed=seed)
    hog = replace(polite, window=64, prompt=(3600, 3800), output=(5, 10), begin_s=0.0, until_s=3.0)
    found = beside_a_hog(polite, hog, 50)
    speeds = [len(r.record.token_ids) / r.record.latency_s for r in found.responses if r.ue == 0]
    print(f"\nseed {seed}: guaranteed {min(speeds):.1f} tokens/s")
    assert min(speeds) >= 8 and {r.ue for r in found.responses} == set(range(51))
