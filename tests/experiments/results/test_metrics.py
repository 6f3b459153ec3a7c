"""Metrics of the field: against llama.cpp's own log, vLLM's counters, and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.experiments.results.metrics import acceptance_columns, byte_columns, speedup_columns, time_columns
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.run import Outcome


def round_(drafted: int, accepted: int, **more: Any) -> RoundRecord:
    zeros = dict.fromkeys(
        ("round", "base_len", "candidates", "queried", "batch_size", "draft_s", "link_s", "queue_s", "verify_s",
         "judge_s", "overhead_s", "uplink_bytes", "downlink_bytes", "gap"), 0,
    )  # fmt: skip
    fixed = {**zeros, "protocol": "greedy", "drafted": drafted, "accepted": accepted, "committed": accepted + 1}
    return RoundRecord(**{**fixed, **more})


def request(latency_s: float, rounds: list[RoundRecord]) -> RequestRecord:
    return RequestRecord(3, [0] * sum(r.committed for r in rounds), "stop", latency_s, 120, 30, rounds)


def test_the_log_of_llama_cpp() -> None:
    # ggml-org/llama.cpp pull request 24536: 87 drafts, 259 tokens generated, 167 accepted, of which 70 at the first
    # position: "draft acceptance = 0.64479, mean acceptance length = 2.92, rate per position = (0.805, 0.632, 0.483)"
    windows = [(3, 3)] * 42 + [(3, 2)] * 13 + [(3, 1)] * 15 + [(3, 0)] * 15 + [(2, 0)] * 2
    found = acceptance_columns([round_(*pair) for pair in windows])
    assert found["acceptance"] == pytest.approx(0.64479, abs=5e-6)
    assert found["mean_acceptance_length"] == pytest.approx(2.92, abs=5e-3)
    assert found["acceptance_by_position"] == pytest.approx((0.805, 0.632, 0.483), abs=5e-4)
    assert found["acceptance_cond"] == pytest.approx(167 / (167 + 45))


@given(st.lists(st.integers(1, 6).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k))), min_size=1, max_size=40))
def test_the_counters_of_vllm(windows: list[tuple[int, int]]) -> None:
    # vllm/v1/spec_decode/metrics.py, 0.32: one counter a position, incremented for every accepted token; drafts counted
    drafts, accepted, drafted, positions = 0, 0, 0, [0] * max(k for k, _ in windows)
    for k, n in windows:
        drafts, accepted, drafted = drafts + 1, accepted + n, drafted + k
        for i in range(n):
            positions[i] += 1
    rounds = [round_(*pair) for pair in windows] + [round_(0, 0)]  # a round without a draft is no draft
    found = acceptance_columns(rounds)
    assert found["acceptance"] == pytest.approx(accepted / drafted)
    assert found["mean_acceptance_length"] == pytest.approx(1 + accepted / drafts)
    assert found["acceptance_by_position"] == pytest.approx([count / drafts for count in positions])
    assert sum(found["acceptance_by_position"]) == pytest.approx(found["mean_accepted"])


def test_without_drafts_there_is_no_acceptance() -> None:
    assert set(acceptance_columns([round_(0, 0)] * 3).values()) == {None}


def test_token_times_by_hand() -> None:
    # 4 tokens after 0.5 s, 2 more after another 0.3 s; then 1 and 2 tokens
    first = request(0.8, [round_(4, 3, end_s=10.5), round_(4, 1, end_s=10.8)])
    second = request(0.4, [round_(2, 0, end_s=3.3), round_(2, 1, end_s=3.4)])
    found = time_columns([first, second])
    assert found["ttft_s"] == pytest.approx((0.5 + 0.3) / 2)
    assert found["tpot_s"] == pytest.approx((0.3 / 5 + 0.1 / 2) / 2)
    assert found["itl_s"] == found["itl_p50_s"] == pytest.approx(0.2)
    assert found["itl_p95_s"] is found["itl_p99_s"] is None  # of two values


def test_percentiles_of_many_times_are_those_of_numpy() -> None:
    gaps_s = np.random.default_rng(0).uniform(0.01, 0.1, 1000)
    ends_s = np.concatenate([[0.5], 0.5 + np.cumsum(gaps_s)])
    found = time_columns([request(float(ends_s[-1]), [round_(1, 0, end_s=float(end_s)) for end_s in ends_s])])
    expected = [np.percentile(gaps_s, share) for share in (50, 95, 99)]
    assert [found[f"itl_p{share}_s"] for share in (50, 95, 99)] == pytest.approx(expected)


def test_rounds_without_time_stamps_have_no_token_times() -> None:
    assert set(time_columns([request(1.0, [round_(4, 3)])]).values()) == {None}


def test_bytes_per_token() -> None:
    found = byte_columns([request(1.0, [round_(4, 3)]), request(1.0, [round_(4, 1)])])
    assert found == {"uplink_bytes_per_token": 240 / 6, "downlink_bytes_per_token": 60 / 6}


def test_speed_up_is_over_the_same_prompts() -> None:
    def outcome(method: str, number: int, latency_s: float) -> Outcome:
        return Outcome(method, number, request(latency_s, [round_(1, 1)]))

    everyone = [outcome("target-only", i, 2.0 + i) for i in range(3)] + [outcome("colocated", 0, 1.0)]
    mine = [outcome("greedy", 0, 1.0), outcome("greedy", 2, 1.5)]
    assert speedup_columns(mine, everyone) == {"speedup_target_only": 6.0 / 2.5, "speedup_colocated": None}
    assert speedup_columns(mine[:1], everyone)["speedup_colocated"] == 1.0
    assert set(speedup_columns(mine, mine).values()) == {None}
