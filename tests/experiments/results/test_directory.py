"""Rows of a run: two methods on two made-up requests, every column computed by hand; and the result files."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from testbed.channel.csi import Csi
from testbed.errors import BadInput
from testbed.experiments.inputs.formats import Example
from testbed.experiments.results import directory as results
from testbed.experiments.results.rows import PARTS
from testbed.experiments.results.rows import rows as rows_of
from testbed.ue.gate import Divergence
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.run import Outcome

EXAMPLES = [Example("q0", "1+1=2\n#### 2"), Example("q1", "#### 30"), Example("q2")]
CSI = Csi(20.0, 40.0, 50.0, 0.01, 0.02)


def round_(drafted: int, accepted: int, committed: int, scale: float = 1.0, **more: Any) -> RoundRecord:
    fixed: dict[str, Any] = {
        "round": 0, "protocol": "fh", "base_len": 5, "candidates": 1, "queried": 0, "batch_size": 1,
        "draft_s": 0.01 * scale, "link_s": 0.02 * scale, "queue_s": 0.03 * scale, "verify_s": 0.04 * scale,
        "judge_s": 0.05 * scale, "overhead_s": 0.06 * scale, "uplink_bytes": 10, "downlink_bytes": 5, "gap": 0.5,
    }  # fmt: skip
    return RoundRecord(drafted=drafted, accepted=accepted, committed=committed, **(fixed | more))


def request(latency_s: float, up: int, down: int, rounds: list[RoundRecord]) -> RequestRecord:
    tokens = sum(r.committed for r in rounds)
    return RequestRecord(5, list(range(tokens)), "stop", latency_s, up, down, rounds)


# 4 accepted of 4, and a bonus: 5; then 1 of 4 and the correction: 2; tokens 7 in 2 rounds
AHEAD = {"drafted_ahead": 5, "hidden_s": 0.08}
FIRST = request(0.5, 1000, 100, [round_(4, 4, 5, **AHEAD), round_(4, 1, 2, csi=CSI, drafted_ahead=3, void=3)])
# 0 of 4 and the correction: 1; then the output's end cuts a window of 2 that was accepted: 2; tokens 3 in 2 rounds
SECOND = request(1.5, 3000, 500, [round_(4, 0, 1, 3.0), round_(2, 2, 2)])
ALONE = request(2.0, 50, 400, [round_(0, 0, 1, protocol="target-only")] * 4)

OUTCOMES = [
    Outcome("fh", 1, SECOND, True),
    Outcome("target-only", 0, ALONE, True),
    Outcome("fh", 0, FIRST, True),
]
TEXTS = {("fh", 0): "so it is\n#### 2", ("fh", 1): "#### 31", ("target-only", 0): "#### 2.0"}

OWN = {
    (method, i): text for method in ("fh", "target-only") for i, text in enumerate(("#### 2", "#### 30", "who knows"))
}


@pytest.fixture
def table() -> dict[str, dict[str, Any]]:
    rows = rows_of(OUTCOMES, EXAMPLES, TEXTS, window=4, threshold=0.5, hidden_bits=8, lookahead=1, own=OWN)
    assert [row["method"] for row in rows] == ["fh", "target-only"]
    return {row["method"]: row for row in rows}


def test_a_speculative_row_by_hand(table: dict[str, dict[str, Any]]) -> None:
    row = dict(table["fh"])
    assert row.pop("acceptance_by_position") == [0.75, 0.5, 0.25, 0.25]
    assert row == pytest.approx(
        {
            "method": "fh",
            "window": 4,
            "window_rule": "fixed",
            "lookahead": 1,
            "threshold": 0.5,
            "hidden_bits": 8,
            "temperature": None,
            "sampling": None,
            "verification": None,
            "q_top": None,
            "q_bits": None,
            "uplink_mbps": 20.0,
            "downlink_mbps": 40.0,
            "rtt_ms": 50.0,
            "per": 0.01,
            "requests": 2,
            "accuracy": 0.5,  # 2 is right, 31 is not 30
            "unparsed": 0.0,
            "accuracy_lost": 0.5,  # the target has both
            "accuracy_lost_low": -1.0,  # two prompts say nothing
            "accuracy_lost_high": 1.0,
            "aal": 2.5,  # (5 + 2 + 1 + 2) / 4
            "rounds": 2.0,
            "acceptance": 0.5,  # (4 + 1 + 0 + 2) / (4 + 4 + 4 + 2)
            "acceptance_cond": 7 / 9,  # two rounds ended in a rejection
            "mean_accepted": 1.75,  # (4 + 1 + 0 + 2) / 4
            "mean_acceptance_length": 2.75,
            "latency_s": 1.0,
            "latency_p95_s": 1.45,  # 0.5 + 0.95 * (1.5 - 0.5)
            "throughput_tps": 5.0,  # 10 / 2.0
            "tokens": 5.0,
            "ttft_s": None,  # these rounds have no time stamps
            "tpot_s": None,
            "itl_s": None,
            "itl_p50_s": None,
            "itl_p95_s": None,
            "itl_p99_s": None,
            "wasted_tokens": 3.5,  # 7 of 14 over two requests
            "wasted_s": 0.0,
            "drafted_ahead": 4.0,
            "void": 1.5,
            "hidden_s": 0.04,
            "streamed": 0.0,
            "uplink_bytes": 2000.0,
            "downlink_bytes": 300.0,
            "uplink_bytes_per_token": 400.0,
            "downlink_bytes_per_token": 60.0,
            "draft_s": 0.03,  # (1 + 1 + 3 + 1) * 0.01 over two requests
            "link_s": 0.06,
            "queue_s": 0.09,
            "verify_s": 0.12,
            "judge_s": 0.15,
            "overhead_s": 0.18,
            "speedup_target_only": None,  # it has not decoded both prompts
            "speedup_colocated": None,
            "lossless": True,
            "ties": 0,
        }
    )


def test_a_target_only_row_by_hand(table: dict[str, dict[str, Any]]) -> None:
    row = table["target-only"]
    assert (row["aal"], row["rounds"], row["tokens"], row["requests"]) == (1.0, 4.0, 4.0, 1)
    assert row["acceptance"] is row["acceptance_cond"] is row["threshold"] is row["lookahead"] is None
    assert row["accuracy"] == 1.0  # 2.0 is 2
    assert row["throughput_tps"] == pytest.approx(2.0)


def test_tokens_are_rounds_times_aal(table: dict[str, dict[str, Any]]) -> None:
    for row in table.values():
        assert row["tokens"] == pytest.approx(row["rounds"] * row["aal"])


def test_what_is_not_known_is_null() -> None:
    outcomes = [Outcome("greedy", 2, request(0.5, 1, 1, [round_(4, 4, 5)]))]
    row = rows_of(outcomes, EXAMPLES, {}, window=4, threshold=0.5)[0]
    assert [row[name] for name in ("uplink_mbps", "downlink_mbps", "rtt_ms", "per")] == [None] * 4
    assert row["threshold"] is None  # greedy has no judge
    assert row["accuracy"] is None  # the prompt has no reference
    assert (row["lossless"], row["ties"]) == (None, 0)


def test_rates_that_were_only_inferred_are_left_out() -> None:
    guessed = msgspec.structs.replace(CSI, source="passive", rtt_ms=30.0)
    rounds = [round_(4, 4, 5, csi=guessed), round_(4, 4, 5, csi=CSI)]
    row = rows_of([Outcome("fh", 2, request(0.5, 1, 1, rounds))], EXAMPLES, {}, window=4, threshold=0.0)[0]
    assert [row[name] for name in ("uplink_mbps", "downlink_mbps", "rtt_ms", "per")] == [20.0, 40.0, 40.0, 0.01]


def test_a_missing_or_markless_output_counts_as_wrong() -> None:
    outcomes = [Outcome("greedy", 0, FIRST), Outcome("greedy", 1, FIRST)]
    row = rows_of(outcomes, EXAMPLES, {("greedy", 0): "the answer is 2"}, window=4, threshold=0)[0]
    assert row["accuracy"] == 0.0


LOSS = Divergence(0, 3, [1], [2], 0.5, False)
TIE = Divergence(0, 3, [1], [2], 1e-4, True)


@pytest.mark.parametrize(
    ("checks", "lossless", "ties"),
    [
        ([(True, None), (True, None)], True, 0),
        ([(True, None), (True, TIE)], True, 1),
        ([(True, TIE), (False, LOSS)], False, 1),
        ([(False, LOSS), (True, None)], False, 0),
        ([(None, None), (True, None)], None, 0),
    ],
)
def test_the_gate_in_a_row(checks: list[Any], lossless: bool | None, ties: int) -> None:
    outcomes = [Outcome("fh", i, FIRST, passed, found) for i, (passed, found) in enumerate(checks)]
    row = rows_of(outcomes, EXAMPLES, {}, window=4, threshold=0.0)[0]
    assert (row["lossless"], row["ties"]) == (lossless, ties)


# ---------------------------------------------------------------- files


def test_one_row_a_round(tmp_path: Path) -> None:
    results.write_parquet(tmp_path / "rounds.parquet", results.round_rows(OUTCOMES))
    table = pq.read_table(tmp_path / "rounds.parquet").to_pylist()
    assert [(r["method"], r["request"], r["committed"]) for r in table] == [
        ("fh", 1, 1), ("fh", 1, 2), *[("target-only", 0, 1)] * 4, ("fh", 0, 5), ("fh", 0, 2),
    ]  # fmt: skip
    documented = {
        "request", "round", "base_len", "drafted", "accepted", "committed", "candidates", "queried", "protocol",
        "batch_size",
    }  # fmt: skip
    assert set(table[0]) >= {*documented, *PARTS}
    assert [r["csi_rtt_ms"] for r in table] == [None] * 7 + [50.0]
    assert (table[-1]["csi_uplink_mbps"], table[-1]["csi_per_up"], table[-1]["csi_per_down"]) == (20.0, 0.01, 0.02)


def test_one_row_a_request(tmp_path: Path) -> None:
    results.write_parquet(tmp_path / "requests.parquet", results.request_rows(OUTCOMES, TEXTS))
    table = pq.read_table(tmp_path / "requests.parquet").to_pylist()
    assert [(r["method"], r["request"], r["tokens"], r["rounds"]) for r in table] == [
        ("fh", 1, 3, 2), ("target-only", 0, 4, 4), ("fh", 0, 7, 2),
    ]  # fmt: skip
    assert table[0]["text"] == "#### 31"
    assert table[2]["token_ids"] == [0, 1, 2, 3, 4, 5, 6]
    assert [p.name for p in tmp_path.iterdir()] == ["requests.parquet"]


def test_a_summary_comes_back_as_it_was_written(tmp_path: Path, table: dict[str, dict[str, Any]]) -> None:
    document = results.summary({"window": 4}, 7, results.host(), list(table.values()))
    results.write_summary(tmp_path, document)
    assert results.read_summary(tmp_path) == document == json.loads((tmp_path / "summary.json").read_text())
    contract = {"schema", "created", "testbed", "commit", "seed", "host", "config", "rows"}
    assert set(document) == contract
    assert (document["schema"], document["seed"], document["config"]) == (1, 7, {"window": 4})
    made = datetime.datetime.fromisoformat(document["created"])
    assert abs((datetime.datetime.now(datetime.timezone.utc) - made).total_seconds()) < 3600
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "is not a run directory"),
        ("", "is not a run directory"),
        ("{", "is not a run directory"),
        ("[]", "is not a run directory"),
        ("null", "is not a run directory"),
        ("{}", "has schema None; this version reads 1"),
        ('{"schema": 2, "rows": []}', "has schema 2; this version reads 1"),
        ('{"schema": "1"}', "has schema 1"),
        ('{"schema": 1, "rows": [1]}', "has no rows"),
        ('{"schema": 1, "rows": [{"rounds": 1' + "0" * 400 + "}]}", r"summary.json \(an integer of 401 digits"),
    ],
)
def test_what_is_no_summary_is_refused(content: str | None, reason: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_text(content)
    with pytest.raises(BadInput, match=reason):
        results.read_summary(tmp_path)
