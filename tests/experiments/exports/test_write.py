"""Exports of a run in virtual time: the layout of other tools, and values recomputed from the run's outcomes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.config import RunConfig
from testbed.errors import BadInput
from testbed.experiments.exports.guidellm import PERCENTILES, summary
from testbed.experiments.exports.write import EXPORTS, write_exports
from testbed.experiments.report.data import load_shown
from testbed.experiments.runs.uerun import result_of, write_run
from testbed.ue.run import Outcome
from tests.experiments.runs.test_virtual import BARE, LINK
from tests.support import virtual
from tests.support.refusals import refuse
from tests.support.reports import row, save_run

METHODS = ("target-only", "colocated", "greedy")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Outcome]]]:
    out = tmp_path_factory.mktemp("runs") / "run"
    out.mkdir()
    config = RunConfig(methods=METHODS, window=4, max_tokens=30)
    outcomes = virtual.decode(LINK, BARE, virtual.synthetic_models(), methods=METHODS, window=4, max_tokens=30)
    write_run(out, config, virtual.work(), result_of(config, virtual.work(), outcomes))
    return out, {m: sorted((o for o in outcomes if o.method == m), key=lambda o: o.request) for m in METHODS}


def exported(run: Path, out: Path, name: str) -> list[Path]:
    return write_exports(load_shown([run]), out, name)


def first_ms(outcomes: list[Outcome]) -> list[float]:
    """TTFT by the parts of the first round: nothing else takes time before its end but opening the session."""
    return [1e3 * (o.record.latency_s - (o.record.rounds[-1].end_s - o.record.rounds[0].end_s)) for o in outcomes]  # type: ignore[operator]


def test_guidellm(run: tuple[Path, dict[str, list[Outcome]]], tmp_path: Path) -> None:
    (path,) = exported(run[0], tmp_path, "guidellm")
    assert path.name == "benchmarks.json"
    benchmarks = json.loads(path.read_text())["benchmarks"]
    assert [one["config"]["method"] for one in benchmarks] == list(METHODS)
    for one, outcomes in zip(benchmarks, run[1].values(), strict=True):
        found, latencies_s = one["metrics"], [o.record.latency_s for o in outcomes]
        assert found["request_totals"] == {"successful": 3, "incomplete": 0, "errored": 0, "total": 3}
        assert found["request_latency"]["successful"]["mean"] == pytest.approx(np.mean(latencies_s))
        assert found["time_to_first_token_ms"]["successful"]["median"] == pytest.approx(np.median(first_ms(outcomes)))
        assert found["output_token_count"]["total"]["total_sum"] == 90
        assert found["prompt_token_count"]["total"]["mean"] == 20
        rate = found["output_tokens_per_second"]["successful"]["mean"]
        assert rate == pytest.approx(90 / sum(latencies_s)) == pytest.approx(one["testbed"]["throughput_tps"])
        for status in ("successful", "incomplete", "errored", "total"):
            assert set(found["inter_token_latency_ms"][status]["percentiles"]) == set(PERCENTILES)


def test_aiperf(run: tuple[Path, dict[str, list[Outcome]]], tmp_path: Path) -> None:
    paths = exported(run[0], tmp_path, "aiperf")
    assert [path.parent.name for path in paths] == ["1-target-only", "2-colocated", "3-greedy"]
    for path, outcomes in zip(paths, run[1].values(), strict=True):
        found = json.loads(path.read_text())
        assert path.name == "profile_export_aiperf.json" and found["schema_version"] == "1.0"
        assert found["request_count"] == {"unit": "requests", "avg": 3.0}
        assert found["time_to_first_token"]["avg"] == pytest.approx(np.mean(first_ms(outcomes)))
        latencies_ms = [1e3 * o.record.latency_s for o in outcomes]
        assert found["request_latency"]["std"] == pytest.approx(np.std(latencies_ms, ddof=1))
        assert found["request_latency"]["p90"] == pytest.approx(np.percentile(latencies_ms, 90))
        tpot_ms = [(total - first) / 29 for total, first in zip(latencies_ms, first_ms(outcomes), strict=True)]
        assert found["inter_token_latency"]["avg"] == pytest.approx(np.mean(tpot_ms))
        assert ("mean_acceptance_length" in found) == (outcomes[0].method != "target-only")
    assert "acceptance" not in json.loads(paths[0].read_text())


def test_ianvs(run: tuple[Path, dict[str, list[Outcome]]], tmp_path: Path) -> None:
    (path,) = exported(run[0], tmp_path, "ianvs")
    assert path.name == "all_rank.csv"
    with path.open(newline="") as stream:
        head, *lines = csv.reader(stream, delimiter=" ")
    assert head[:2] == ["rank", "algorithm"] and head[-2:] == ["time", "url"]
    found = [dict(zip(head, line, strict=True)) for line in lines]
    means_s = {m: np.mean([o.record.latency_s for o in outcomes]) for m, outcomes in run[1].items()}
    assert [one["rank"] for one in found] == ["1", "2", "3"]
    assert [one["algorithm"] for one in found] == sorted(METHODS, key=lambda m: means_s[m])
    by_name = {one["algorithm"]: one for one in found}
    drafted = sum(r.drafted for o in run[1]["greedy"] for r in o.record.rounds)
    assert by_name["greedy"]["Edge Completion Tokens"] == str(drafted)
    assert by_name["colocated"]["Edge Completion Tokens"] == by_name["target-only"]["Edge Prompt Tokens"] == "0"
    assert {(one["Cloud Completion Tokens"], one["paradigm"]) for one in found} == {("90", "jointinference")}
    assert by_name["target-only"]["Acceptance Rate"] == "nan" != by_name["greedy"]["Acceptance Rate"]
    first_s = float(by_name["greedy"]["Time to First Token"])
    assert first_s == pytest.approx(np.mean(first_ms(run[1]["greedy"])) / 1e3)


@pytest.mark.parametrize("values", [[], [2.0], [3.0, 1.0, 1.0, 7.0]])
def test_a_distribution(values: list[float]) -> None:
    found: dict[str, Any] = summary(values)
    assert (found["count"], found["total_sum"]) == (len(values), sum(values))
    if values:
        assert found["mode"] == min(values) and found["variance"] == pytest.approx(found["std_dev"] ** 2)
        assert found["percentiles"]["p50"] == found["median"] == np.median(values)


@pytest.mark.parametrize("name", EXPORTS)
def test_what_has_no_time_stamps_is_refused(name: str, tmp_path: Path) -> None:
    path = save_run(tmp_path / "old", [row("greedy")])
    refuse(lambda: exported(path, tmp_path, name), BadInput, "no rounds with time stamps")
    refuse(lambda: exported(path, tmp_path, "csv"), BadInput, "'csv'", "guidellm, aiperf, ianvs")


@pytest.mark.parametrize("linked", ["exports", "exports/1-run"])
@pytest.mark.parametrize("name", EXPORTS)
def test_nothing_is_written_through_a_folder_that_is_a_link(
    name: str, linked: str, run: tuple[Path, dict[str, list[Outcome]]], tmp_path: Path
) -> None:
    elsewhere, link = tmp_path / "elsewhere", tmp_path / "out" / linked
    elsewhere.mkdir()
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    refuse(lambda: exported(run[0], tmp_path / "out", name), BadInput, f"{linked} is a link")
    assert not list(elsewhere.iterdir())
