"""A profile fitted to rounds whose times are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from testbed.config import RunConfig
from testbed.errors import TestbedError
from testbed.experiments.inputs.profile import LinearDraft, LinearVerify, PassWork
from testbed.experiments.runs.calibrate import fit, measured_run

RTT_S = 0.05


def rounds(method: str, verify_base_s: float, link_s: float, seed: int) -> list[dict[str, Any]]:
    """Drafting 1 ms + 0.3 ms a token, 0.02 ms a prompt token; verifying base + 0.1 ms a new token; 1 % noise."""
    rng = np.random.default_rng(seed)
    rows = []
    for request in range(6):
        for number in range(20):
            drafted, base_len = int(rng.choice([4, 8, 16])), 100 + 5 * number + request
            first = number == 0
            new = drafted + (base_len if first else 1)
            times = {
                "draft_s": 1e-3 + 3e-4 * drafted + (2e-5 * base_len if first else 0.0),
                "verify_s": verify_base_s + 1e-4 * new,
                "link_s": link_s, "queue_s": 1e-4, "judge_s": 0.0, "overhead_s": 2e-4,
            }  # fmt: skip
            noisy = {name: value * (1 + 0.01 * rng.standard_normal()) for name, value in times.items()}
            rows.append({"method": method, "round": number, "drafted": drafted, "base_len": base_len, **noisy})
    return rows


def alone() -> list[dict[str, Any]]:
    zeros = dict.fromkeys(("draft_s", "link_s", "queue_s", "judge_s", "overhead_s"), 0.0)
    return [
        {"method": "target-only", "round": i, "drafted": 0, "base_len": 9, "verify_s": 0.004, **zeros}
        for i in range(50)
    ]


def test_known_times_come_back() -> None:
    far, near = rounds("greedy", 0.011, RTT_S + 0.0017, 0), rounds("colocated", 0.005, 0.0007, 1)
    profile = fit([*far, *near, *alone()], "here", 1e3 * RTT_S)
    assert isinstance(profile.draft, LinearDraft) and isinstance(profile.verify, LinearVerify)
    assert profile.draft.base_s == pytest.approx(1e-3, rel=0.1)
    assert profile.draft.per_token_s == pytest.approx(3e-4, rel=0.05)
    assert profile.draft.prefill_per_token_s == pytest.approx(2e-5, rel=0.1)
    assert profile.verify.pass_s([PassWork(8, 9, 100)]) == pytest.approx(0.0119, rel=0.02)
    assert profile.stack_s == pytest.approx(0.001, rel=0.2)  # half of 1.7 + 0.3 ms
    assert profile.hot is not None
    assert profile.hot.verify.pass_s([PassWork(8, 9, 100)]) == pytest.approx(0.0059, rel=0.02)
    assert profile.hot.verify.pass_s([PassWork(0, 1, 100)]) == pytest.approx(0.004, rel=0.01)
    assert profile.hot.stack_s == pytest.approx(0.0005, rel=0.1)


def test_too_few_rounds_are_no_measurement() -> None:
    with pytest.raises(TestbedError, match="too few rounds"):
        fit(rounds("greedy", 0.011, RTT_S, 0)[:5], "here", 1e3 * RTT_S)


def test_rounds_are_measured_one_after_another() -> None:
    """Those of streams and of windows ahead do not add up to the time that passes."""
    asked = RunConfig(drafter="suffix", lookahead=1, window=4, max_tokens=50, dataset="bundled:edit")
    run = measured_run(asked, "tcp://127.0.0.1:1", "tcp://127.0.0.1:2", 16)
    assert (run.stream, run.lookahead, run.window, run.drafter, run.dataset) == (False, 0, 16, "suffix", "bundled:edit")
    assert run.methods == ("greedy", "colocated", "target-only")
