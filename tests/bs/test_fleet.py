"""Many UEs on one base station in virtual time: promises, chunked prompts, admission, and outputs all the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testbed.bs.scheduling.admission import Admission
from testbed.bs.scheduling.base import Fcfs, Scheduler
from testbed.bs.scheduling.estimator_online import OnlineEstimator
from testbed.bs.scheduling.slo import Slo
from testbed.errors import AdmissionError
from testbed.experiments.inputs.profile import InteractionVerify
from testbed.optim.pass_time import Coefficients
from testbed.synthetic import next_token
from tests.support.fleet import VOCAB, Fleet, Served, serve_fleet

TABLE_12 = Coefficients(a=3.314e-5, b_compute=3.450e-8, b_read=4.620e-6, c=1.486e-2)
CLASSES = (2.0, 4.0, 6.0, 8.0)
MIX = [CLASSES[i % 4] for i in range(96)]
CAP = 4
"""Requests of a pass: a small one, so that few UEs fill the verifier."""
BUSY = Fleet(output=(20, 160), until_s=9)


def assert_lossless(served: Served) -> None:
    assert served.responses and not served.failures
    for response in served.responses:
        ids = list(response.prompt)
        for token in response.record.token_ids:
            assert token == next_token(ids, VOCAB, 0)
            ids.append(token)


def follow_up_waits(served: Served, guaranteed: bool = False) -> list[float]:
    """Queueing times of all rounds after the first, or of those with a guarantee."""
    responses = [response for response in served.responses if response.speed_tps or not guaranteed]
    return [r.queue_s for response in responses for r in response.record.rounds[1:]]


def test_on_one_load_first_come_first_served_violates_guarantees_and_slo_keeps_them() -> None:
    fcfs = serve_fleet(BUSY, MIX, Fcfs(CAP))
    slo = serve_fleet(BUSY, MIX, Slo(coefficients=TABLE_12, max_requests=CAP), margin=0.02)
    for served in (fcfs, slo):
        assert_lossless(served)
        assert {response.ue for response in served.responses} == set(range(len(MIX)))
    assert fcfs.violations()[8.0] > 0.2
    assert max(slo.violations().values()) < 0.02
    assert fcfs.metrics["missed_deadlines"]["8"] > 5 * slo.metrics["missed_deadlines"]["8"]
    assert fcfs.metrics["missed_deadlines"]["2"] == 0


def test_a_verifier_with_twice_too_much_to_do_serves_everybody_all_the_same() -> None:
    fleet = replace(BUSY, output=(20, 40), until_s=6)
    served = serve_fleet(fleet, [*MIX, *MIX, None, None], Slo(coefficients=TABLE_12, max_requests=CAP))
    assert_lossless(served)
    assert {response.ue for response in served.responses} == set(range(2 * len(MIX) + 2))
    assert served.violations()[8.0] > 0.5
    assert max(follow_up_waits(served)) < 10


def test_what_is_learnt_from_passes_replaces_wrong_coefficients(caplog: pytest.LogCaptureFixture) -> None:
    wrong = Coefficients(*(0.4 * value for value in TABLE_12.values))
    fleet = replace(BUSY, until_s=8)
    served = serve_fleet(fleet, MIX[:40], Slo(coefficients=wrong, max_requests=CAP), estimator=OnlineEstimator(wrong))
    learnt = Coefficients(**served.metrics["coefficients"])
    for new, cached in ((6, 100), (6, 400), (250, 0)):
        assert learnt.alone_s(new, cached) == pytest.approx(TABLE_12.alone_s(new, cached), rel=0.05)
    assert served.metrics["estimate_mape"] < 0.02
    assert served.metrics["drifted"]
    assert [record.message for record in caplog.records if "passes take longer" in record.message] == [
        "passes take longer than the estimator's first coefficients say; it follows the passes"
    ]
    true = serve_fleet(
        fleet, MIX[:40], Slo(coefficients=TABLE_12, max_requests=CAP), estimator=OnlineEstimator(TABLE_12)
    )
    assert not true.metrics["drifted"] and true.metrics["estimate_mape"] < 1e-9


SLOW = InteractionVerify(a_s=1e-3, b_compute_s=1e-7, b_read_s=5e-6, c_s=5e-3)
"""A prompt of 1500 tokens takes more than a second and a half."""
SLOW_TIMES = Coefficients(a=1e-3, b_compute=1e-7, b_read=5e-6, c=5e-3)
LONG = Fleet(verify=SLOW, prompt=(600, 1500), output=(20, 60), until_s=20, spread_s=3)


def test_a_prompt_in_pieces_holds_follow_ups_back_no_longer_than_a_pass_may_last() -> None:
    speeds = [4.0] * 4 + [None]
    whole = serve_fleet(LONG, speeds, Slo(coefficients=SLOW_TIMES, max_requests=13))
    cut = serve_fleet(LONG, speeds, Slo(coefficients=SLOW_TIMES, max_requests=13, cuts=True))
    for served in (whole, cut):
        assert_lossless(served)
    assert whole.metrics["pieces"] == 0 and max(follow_up_waits(whole)) > 1
    assert cut.metrics["pieces"] > 20
    # a third of (3.35 tokens / 4 per second - 100 ms of drafting - 40 ms of network) is 0.23 s
    assert max(follow_up_waits(cut, guaranteed=True)) < 0.35
    assert max(follow_up_waits(cut)) < 1.2  # a second, and a pass
    assert max(r.queue_s + r.verify_s for x in cut.responses for r in x.record.rounds[:1]) < 10


@pytest.mark.parametrize("chunk", [64, 256])
def test_engines_cut_prompts_to_a_fixed_length(chunk: int) -> None:
    served = serve_fleet(LONG, [4.0] * 5, Fcfs(13), chunk_tokens=chunk)
    assert_lossless(served)
    expected = sum(max(0, -(-(len(x.prompt) - chunk) // chunk)) for x in served.responses)
    assert served.metrics["pieces"] == pytest.approx(expected, abs=len(served.responses))
    prompts_s = 5 * (SLOW.c_s + chunk * (SLOW.a_s + SLOW.b_compute_s * 1500) + 1500 * SLOW.b_read_s)
    assert max(follow_up_waits(served)) < prompts_s + 0.1


@pytest.mark.parametrize(
    ("scheduler", "chunk"), [(Fcfs(13), None), (Fcfs(13), 64), (Slo(coefficients=SLOW_TIMES, hold_s=0.05), None)]
)
def test_pieces_cost_no_time_but_that_of_their_passes(scheduler: Scheduler, chunk: int | None) -> None:
    """One UE alone: all waiting is for its own prompt."""
    served = serve_fleet(replace(LONG, until_s=4), [None], scheduler, chunk_tokens=chunk)
    for response in served.responses:
        first = response.record.rounds[0]
        new = len(response.prompt) + first.drafted
        linear_s = SLOW.a_s * new
        assert first.queue_s < 1e-9
        assert linear_s < first.verify_s < 1.4 * linear_s + SLOW.c_s * (2 + len(response.prompt) // 40)


def test_admission_keeps_promises_by_making_fewer() -> None:
    speeds = [8.0] * 100
    fleet = replace(BUSY, until_s=6, spread_s=6, output=(150, 200))
    slo = Slo(coefficients=TABLE_12, max_requests=CAP)
    all_in = serve_fleet(fleet, speeds, slo, margin=0.02)
    admission = Admission(coefficients=TABLE_12, max_requests=CAP)
    some = serve_fleet(fleet, speeds, slo, margin=0.02, admission=admission)
    assert all_in.violations()[8.0] > 0.2
    assert some.violations()[8.0] < 0.02
    assert 20 < len({response.ue for response in some.responses}) < 90
    refused = [error for _, error in some.failures]
    assert refused and all(isinstance(error, AdmissionError) for error in refused)
    assert all("8 tokens/s cannot be guaranteed beside" in str(error) for error in refused)
    assert some.metrics["refused_sessions"]["8"] == len(refused)


def test_a_ue_that_takes_less_is_promised_the_class_that_can() -> None:
    fleet = replace(BUSY, until_s=6, spread_s=6, output=(60, 90), accept_slower=True)
    admission = Admission(coefficients=TABLE_12, max_requests=CAP, limit=0.4)
    served = serve_fleet(
        fleet, [8.0] * 50, Slo(coefficients=TABLE_12, max_requests=CAP), margin=0.02, admission=admission
    )
    assert_lossless(Served(served.responses))
    assert served.metrics["refused_sessions"]["8"] > 5
    assert len(served.metrics["promised_rounds"]) > 1
