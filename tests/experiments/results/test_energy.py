"""Energy of a run's rounds and rows, computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from testbed.channel.spec import ChannelSpec
from testbed.experiments.inputs.profile import LinearDraft, LinearVerify, Profile
from testbed.experiments.results.energy import PARTS, energy_columns, idle_energies, measured
from testbed.power.series import Samples
from testbed.ue.records import RequestRecord, RoundRecord
from tests.support.virtual import decode, synthetic_models

ZERO_S = 1.7e9


def steady(watts: float = 10.0, seconds: float = 100.0, **more: Any) -> Samples:
    times_s = ZERO_S + np.arange(0.0, seconds, 0.1)
    return Samples(times_s, np.full(len(times_s), watts), **more)


def round_(begin_s: float | None, draft_s: float, wait_s: float, end: float = 0.0, **more: Any) -> RoundRecord:
    """A round that sends right after drafting; half of its waiting time is the link's, a quarter the BS's."""
    fixed: dict[str, Any] = {
        "round": 0, "protocol": "greedy", "base_len": 5, "drafted": 4, "accepted": 3, "committed": 4, "candidates": 1,
        "queried": 0, "batch_size": 1, "draft_s": draft_s, "link_s": wait_s / 2, "queue_s": wait_s / 16,
        "verify_s": wait_s / 8, "judge_s": wait_s / 16, "overhead_s": wait_s / 4, "uplink_bytes": 1,
        "downlink_bytes": 1, "gap": 0.0,
    }  # fmt: skip
    if begin_s is not None:
        sent_s = begin_s + draft_s
        instants = {"begin_s": begin_s, "sent_s": sent_s, "verdict_s": sent_s + wait_s, "end_s": sent_s + wait_s + end}
        fixed |= instants
    return RoundRecord(**(fixed | more))


def request(*rounds: RoundRecord, zero_s: float | None = ZERO_S) -> RequestRecord:
    return RequestRecord(5, [1], "stop", 1.0, 1, 1, list(rounds), zero_s)


def test_a_round_by_hand() -> None:
    (found,) = measured([request(round_(1.0, 0.4, 0.8, 0.2))], steady(temp_c=np.full(1000, 51.0)))
    record = found.rounds[0]
    assert record.energy_j == pytest.approx(14.0)
    assert [getattr(record, name) for name in PARTS] == pytest.approx([4.0, 4.0, 2.0, 2.0 + 2.0])
    assert (record.power_gap_s, record.temp_c, record.throttled) == (0.0, 51.0, None)


def test_a_row_by_hand() -> None:
    requests = [
        request(round_(1.0, 0.5, 0.5), round_(2.0, 0.5, 0.5)),  # 20 J, 8 tokens
        request(round_(5.0, 1.0, 1.0)),  # 20 J, 4 tokens
        request(round_(98.0, 1.0, 9.0)),  # passes the end of the samples
    ]
    slow = steady(throttled=("",) * 15 + ("thermal",) * 10 + ("",) * 975)  # from 1.5 s to 2.5 s
    found = measured(requests, slow)
    row = energy_columns("greedy", found, idle_energies(found, 4.0))
    assert row == pytest.approx(
        {
            "energy_j": 20.0,
            "draft_j": 10.0,
            "link_j": 5.0,
            "wait_j": 2.5,
            "other_j": 2.5,
            "energy_per_token_j": 40 / 12,
            "above_idle_j": 20.0 - 4.0 * 2.0,
            "energy_requests": 2,
            "power_gap_s": 108.0 - 99.9,
            "throttled_rounds": 2,
        }
    )


def test_concurrent_requests_share_the_idle_power_as_well() -> None:
    """It was subtracted from each of them: a device as idle as before had less than nothing above idle."""
    requests = [
        request(round_(1.0, 0.5, 0.5), round_(2.0, 0.5, 0.5)),
        request(round_(1.5, 0.5, 0.5)),
        request(round_(9.0, 0.5, 0.5)),
    ]
    found = measured(requests, steady())  # 10 W
    idle_j = idle_energies(found, 10.0)
    assert idle_j == pytest.approx([15.0, 5.0, 10.0])
    assert energy_columns("greedy", found, idle_j)["above_idle_j"] == pytest.approx(0.0, abs=1e-6)
    assert energy_columns("greedy", found[:1], idle_j[:1])["above_idle_j"] == pytest.approx(0.0, abs=1e-6)
    assert energy_columns("greedy", found, idle_energies(found, None))["above_idle_j"] is None


def test_what_was_not_measured_has_no_columns() -> None:
    requests = [request(round_(1.0, 0.5, 0.5))]
    assert energy_columns("greedy", requests) == {}
    for unknown in (request(round_(None, 0.5, 0.5)), request(round_(1.0, 0.5, 0.5), zero_s=None)):
        assert measured([unknown], steady()) == [unknown]


def test_colocated_has_no_energy_of_its_own() -> None:
    row = energy_columns("colocated", measured([request(round_(1.0, 0.5, 0.5))], steady()))
    assert (row["energy_j"], row["energy_per_token_j"], row["energy_requests"]) == (None, None, 0)


def test_target_only_divides_its_waiting_over_the_request() -> None:
    # the link's 0.6 s stand in the first round, which was there after 0.5 s
    quiet = {"protocol": "target-only", "queue_s": 0.0, "judge_s": 0.0, "overhead_s": 0.0, "committed": 1}
    rounds = [
        round_(1.0, 0.0, 0.5, **quiet, link_s=0.6, verify_s=0.1),
        round_(1.5, 0.0, 0.5, **quiet, link_s=0.0, verify_s=0.3),
    ]
    (found,) = measured([request(*rounds)], steady())
    row = energy_columns("target-only", [found])
    assert row["link_j"] == pytest.approx(6.0)
    assert row["wait_j"] == pytest.approx(4.0)
    assert row["draft_j"] == row["other_j"] == pytest.approx(0.0)


def test_a_bs_that_says_more_than_the_wait_has_no_more_than_all() -> None:
    (found,) = measured([request(round_(1.0, 0.0, 1.0, link_s=0.0, verify_s=3.0, queue_s=1.0, judge_s=0.0))], steady())
    assert found.rounds[0].wait_j == pytest.approx(10.0)
    assert found.rounds[0].link_j == 0


@settings(max_examples=60)
@given(st.lists(st.tuples(st.floats(0, 40), st.floats(0, 5), st.floats(0, 5), st.floats(0, 1)), min_size=1, max_size=5))
def test_the_parts_of_every_round_add_up(rounds: list[tuple[float, float, float, float]]) -> None:
    rng = np.random.default_rng(3)
    times_s = ZERO_S + np.cumsum(rng.uniform(0.05, 0.15, 600))
    samples = Samples(times_s, rng.uniform(1, 20, 600))
    for found in measured([request(round_(*one)) for one in rounds], samples):
        record = found.rounds[0]
        if record.energy_j is not None:
            assert sum(getattr(record, name) for name in PARTS) == pytest.approx(record.energy_j, rel=1e-6, abs=1e-5)


@pytest.mark.parametrize("method", ["greedy", "fh", "target-only"])
def test_instants_of_rounds_are_those_of_their_parts(method: str) -> None:
    draft, verify = LinearDraft(per_token_s=0.01), LinearVerify(base_s=0.03)
    profile = Profile(name="bare", about="", source="", draft=draft, verify=verify)
    link = ChannelSpec(kind="virtual", uplink_mbps=2, downlink_mbps=1, rtt_ms=30)
    for outcome in decode(link, profile, synthetic_models(), methods=(method,)):
        rounds = outcome.record.rounds
        instants = np.array([(r.begin_s, (r.begin_s or 0) + r.draft_s, r.sent_s, r.verdict_s, r.end_s) for r in rounds])
        assert (np.diff(instants.ravel()) >= -1e-9).all()  # one after the other, from round to round
        assert instants[-1, -1] - instants[0, 0] == pytest.approx(outcome.record.latency_s, abs=1e-6)
        waits_s = [r.link_s + r.queue_s + r.verify_s + r.judge_s for r in rounds]
        if method == "target-only":
            assert sum(waits_s) == pytest.approx(float(np.sum(instants[:, 3] - instants[:, 2])), rel=0.01)
        else:
            np.testing.assert_allclose(instants[:, 3] - instants[:, 2], waits_s, atol=1e-6)
        known = replace(outcome.record, clock_unix_s=ZERO_S - instants[0, 0])  # as if it had been real
        row = energy_columns(method, measured([known], steady(watts=2.0)))
        assert row["energy_j"] == pytest.approx(2.0 * outcome.record.latency_s, rel=1e-4)
        assert row["draft_j"] == pytest.approx(2.0 * sum(r.draft_s for r in rounds), rel=1e-3, abs=1e-5)
        assert row["link_j"] == pytest.approx(2.0 * sum(r.link_s for r in rounds), rel=0.01)
