"""Profiling an engine: the plan of Appendix C, unique prompts, and the report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from testbed.bs.engines.base import VerifyRequest, VerifyResult
from testbed.bs.scheduling.estimator_csv import read_samples
from testbed.errors import BadInput, TestbedError
from testbed.experiments.estimator import profile as estimator_profile
from testbed.experiments.estimator.profile import MeasuredBatch, PassBench, csv_lines, measure, plan, report
from testbed.optim.pass_time import Coefficients, RequestWork


class Recorder:
    """An engine with a prefix cache that records what it computed, without delays."""

    model_name, hidden_size, max_positions, max_batch_tokens = "recorder", 8, 2500, 8192

    def __init__(self, vocab_size: int = 900) -> None:
        self.vocab_size = vocab_size
        self.kept: dict[str, list[int]] = {}
        self.passes: list[list[RequestWork]] = []

    def verify(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        found = []
        for request in batch:
            ids = [*request.prefix.tolist(), *request.draft.tolist()]
            seen = self.kept.get(request.session, [])
            common = next(
                (i for i, (a, b) in enumerate(zip(ids, seen, strict=False)) if a != b), min(len(ids), len(seen))
            )
            cached = min(common, len(request.prefix) - 1)
            found.append(RequestWork(len(ids) - cached, cached))
            self.kept[request.session] = ids
        self.passes.append(found)
        return []

    def release(self, session: str) -> None:
        self.kept.pop(session)

    def close(self) -> None:
        pass


def test_the_plan_is_that_of_the_paper() -> None:
    planned = plan()
    counts = {
        c: sum(one.configuration.category == c and not one.held_out for one in planned)
        for c in estimator_profile.CATEGORIES
    }
    assert counts == {"compute": 25, "memory": 48, "compute-random": 15, "memory-random": 15, "mixed": 20}
    train = {one.configuration.works for one in planned if not one.held_out}
    unseen = [one.configuration.works for one in planned if one.held_out]
    assert len(unseen) == len(set(unseen)) == 50 and not train & set(unseen)
    for one in planned:
        cached = [work.cached > 0 for work in one.configuration.works]
        assert any(cached) == ("compute" not in one.configuration.category)
        assert all(cached) == ("memory" in one.configuration.category)
        assert all(work.new >= 1 and work.new + work.cached <= 2000 for work in one.configuration.works)
    totals = [sum(w.new for w in o.configuration.works) for o in planned if o.configuration.category == "compute"]
    assert min(totals) == 1200 and max(totals) <= 2020


def test_the_plan_scales_thins_and_follows_its_seed() -> None:
    small = plan(largest=200, seed=3, thin=5)
    assert 30 < len(small) < 45 and {o.configuration.category for o in small} == set(estimator_profile.CATEGORIES)
    assert max(w.new + w.cached for o in small for w in o.configuration.works) <= 200
    assert plan(200, 3, 5) == small != plan(200, 4, 5)
    for wrong in ({"largest": 99}, {"thin": 0}):
        with pytest.raises(BadInput, match="a plan needs 100 tokens"):
            plan(**wrong)


def test_a_pass_computes_and_finds_cached_what_the_plan_says() -> None:
    engine = Recorder()
    works = (RequestWork(40, 0), RequestWork(1, 300), RequestWork(7, 20), RequestWork(1, 0))
    PassBench(engine, 0).time_s(works)
    primed, timed = engine.passes
    assert primed == [RequestWork(300, 0), RequestWork(20, 0)] and timed == list(works)
    assert engine.kept == {}  # released


def test_warm_ups_are_dropped_the_order_is_drawn_and_medians_count(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(np.cumsum([x for i in range(1000) for x in (0.5, 100.0 if i % 5 == 0 else 1.0 + i % 5)]).tolist())
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    engine, told = Recorder(), []
    planned = plan(largest=200, thin=8)
    done = measure(engine, planned, repeats=4, warmups=1, seed=0, progress=lambda *said: told.append(said))
    assert [one.configuration for one in done] == [one.configuration for one in planned]
    assert all(one.times_s == (2.0, 3.0, 4.0, 5.0) and one.sample.latency_s == 3.5 for one in done)
    assert told[-1] == (len(planned), len(planned), "done") and len(told) == len(planned) + 1
    timed = [tuple(found) for found in engine.passes if tuple(found) in {o.configuration.works for o in planned}]
    assert [found for i, found in enumerate(timed) if i % 5 == 0] != [o.configuration.works for o in planned]


def test_repeats_that_something_disturbed_are_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes take 1 s; in the first attempt of three repeats, one takes 9 s."""
    took = iter([1.0, 9.0, 1.0, 1.0, 1.0, 1.02] * 100)
    now_s = 0.0

    def tick() -> float:
        return now_s

    class Slow(Recorder):
        def verify(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
            nonlocal now_s
            now_s += next(took)
            return super().verify(batch)

    monkeypatch.setattr(time, "perf_counter", tick)
    planned = [one for one in plan(largest=200, thin=5) if one.configuration.category == "compute"]
    done = measure(Slow(), planned, repeats=3, warmups=0, seed=0, progress=lambda *_: None)
    assert all(one.times_s == pytest.approx((1.0, 1.0, 1.02)) for one in done)


def test_prompts_are_unique_and_a_repeated_one_is_an_error() -> None:
    bench = PassBench(Recorder(vocab_size=1), 0)
    bench.time_s([RequestWork(16, 0)])
    with pytest.raises(TestbedError, match="a prompt was repeated"):
        bench.time_s([RequestWork(16, 0)])


def test_what_an_engine_cannot_take_is_refused() -> None:
    engine = Recorder()
    with pytest.raises(BadInput, match=r"sequences of 29\d\d tokens exceed the target.s limit of 2499; give --largest"):
        measure(engine, plan(largest=3000, thin=9), repeats=1, warmups=0, seed=0, progress=lambda *_: None)
    with pytest.raises(BadInput, match="repeats must be at least 1"):
        measure(engine, plan(), repeats=0, warmups=0, seed=0, progress=lambda *_: None)
    assert engine.passes == []


def invented(extra_s: float) -> list[MeasuredBatch]:
    """Passes with known coefficients and an extra time per request."""
    truth, rng, found = Coefficients(2e-5, 3e-9, 4e-7, 0.004), np.random.default_rng(5), []
    for one in plan():
        works = one.configuration.works
        took_s = truth.batch_s(works) + extra_s * len(works)
        times = took_s * np.exp(0.01 * rng.standard_normal(3))
        found.append(MeasuredBatch(one.configuration, one.held_out, tuple(times.tolist())))
    return found


def test_the_report_judges_on_unseen_passes_and_finds_the_term_that_is_missing() -> None:
    complete, lacking = report(invented(0.0)), report(invented(0.004))
    assert complete["unseen"]["r2"] > 0.99 and complete["unseen"]["mape"] < 0.02
    assert complete["batches"] == 123 and complete["unseen"]["batches"] == 50
    by_term = {row["term"]: row for row in lacking["missing_terms"]}
    assert min(by_term, key=lambda term: by_term[term]["mape"]) == "requests"
    assert by_term["requests"]["seconds"] == pytest.approx(0.004, rel=0.1)
    assert by_term["requests"]["mape"] < 0.5 * by_term["none"]["mape"]
    assert complete["missing_terms"][0]["mape"] == pytest.approx(complete["unseen"]["mape"])  # no term, nothing clamped
    assert 0 < lacking["variation_p50"] < 0.03


def test_its_file_is_what_fit_reads(tmp_path: Path) -> None:
    measured = invented(0.0)
    path = tmp_path / "passes.csv"
    path.write_text("\n".join(csv_lines(measured)) + "\n")
    read = read_samples(path)
    assert [s.batch for s in read] == [one.configuration.works for one in measured]
    assert [s.latency_s for s in read] == pytest.approx([one.sample.latency_s for one in measured], abs=1e-8)
