"""Open-loop load: arrivals and latencies of a queue whose theory is known, and when a load counts as too much."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pytest

from testbed.errors import BadInput
from testbed.experiments.deployment.load import LoadRequest, throughput_rps
from testbed.experiments.latency.load import Repeat, Series, _named, measure, write_tables
from testbed.experiments.latency.load_config import LoadConfig
from testbed.experiments.latency.openloop import (
    Served,
    batches,
    loads,
    offer,
    piled_up,
    point,
    steady,
    synchronous_rps,
)  # fmt: skip
from testbed.experiments.results.latency import read_points, read_series, repeats_of
from testbed.optim.serving.ratios import ratios
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.virtual_time import VirtualClock, run_virtually

SERVICE_S = 0.1


@dataclass
class OneServer:
    """A station that serves one request at a time, each in the same time."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    free: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def decode(self, number: int, request: LoadRequest) -> RequestRecord:
        async with self.free:
            await self.clock.sleep(SERVICE_S)
        rounds = [record(8, 8, 9), record(8, 3, 4)]
        return RequestRecord(len(request.prompt), list(range(13)), "stop", SERVICE_S, 1, 1, rounds)


def record(drafted: int, accepted: int, committed: int) -> RoundRecord:
    return RoundRecord(0, "greedy", 5, drafted, accepted, committed, 0, 0, 2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1, 1, 0.0)


def requests(count: int) -> list[LoadRequest]:
    return [LoadRequest([1, 2, 3], 10 + i) for i in range(count)]


def offered(rps: float, count: int = 4000, seed: int = 0) -> list[Served]:
    async def run() -> list[Served]:
        return await offer(OneServer(), requests(count), rps, seed)  # type: ignore[arg-type]

    return run_virtually(run())


@pytest.mark.parametrize("load", [0.2, 0.5, 0.7])
def test_latency_is_that_of_the_queue(load: float) -> None:
    """M/D/1 (Pollaczek and Khinchine): s + ρ·s / 2(1 − ρ)."""
    found = point([offered(load / SERVICE_S)], 8)
    assert found.latency_s == pytest.approx(SERVICE_S * (1 + load / (2 * (1 - load))), rel=0.06)
    assert not found.saturated
    assert found.rps == pytest.approx(load / SERVICE_S, rel=0.06) and found.requests == 2800
    assert found.alpha == pytest.approx(11 / 12) and found.decode == 13 and found.prefill == 3 and found.batch_size == 2


def test_arrivals_are_poisson_and_the_seed_s() -> None:
    gaps = np.diff([s.arrived_s for s in offered(5.0)])
    assert gaps.mean() == pytest.approx(0.2, rel=0.06) and gaps.std() == pytest.approx(0.2, rel=0.08)
    assert offered(5.0, 50) == offered(5.0, 50)
    assert offered(5.0, 50) != offered(5.0, 50, seed=1)


@pytest.mark.parametrize("load", [1.3, 2.0])
def test_more_than_can_be_served_piles_up(load: float) -> None:
    assert point([offered(load / SERVICE_S, 90)], 8).saturated


def streamed(load: float, count: int, seed: int) -> list[Served]:
    """A server that takes all requests into each pass, of 10 ms and 4 ms a request; outputs of 8 to 64 tokens."""
    rng = np.random.default_rng(seed)
    arrived_s = np.cumsum(rng.exponential(0.004 * 36 / load, count))
    left = rng.integers(8, 65, count)
    now_s, under_way, ended = 0.0, np.zeros(count, bool), np.full(count, np.nan)
    while np.isnan(ended).any():
        under_way = (arrived_s <= now_s) & np.isnan(ended)
        if not under_way.any():
            now_s = arrived_s[np.isnan(ended)][0]
            continue
        now_s += 0.01 + 0.004 * under_way.sum()
        left[under_way] -= 1
        ended[under_way & (left == 0)] = now_s
    return [Served(a, b - a, 9, 36, 36, 0, 0, 1.0) for a, b in zip(arrived_s.tolist(), ended.tolist(), strict=True)]


@pytest.mark.parametrize(
    ("load", "least", "most"), [(0.2, 0, 2), (0.5, 0, 4), (0.7, 0, 5), (1.3, 34, 40), (2.0, 40, 40)]
)
def test_requests_that_share_passes_pile_up_where_load_is_too_much(load: float, least: int, most: int) -> None:
    """All take longer then, the first as well, and what came last is served faster than what came before."""
    assert least <= sum(piled_up(streamed(load, 100, seed)) for seed in range(40)) <= most


def test_an_idle_start_is_no_piling_up() -> None:
    """At 0.6 of what can be served the first requests are faster than the others, whatever the seed."""
    assert sum(piled_up(offered(0.6 / SERVICE_S, 60, seed)) for seed in range(40)) <= 6


def test_one_at_a_time_and_at_most() -> None:
    async def run() -> tuple[float, float]:
        station = OneServer()
        low = await synchronous_rps(station, requests(10))  # type: ignore[arg-type]
        return low, await throughput_rps(station, requests(40), 8, 8)  # type: ignore[arg-type]

    assert run_virtually(run()) == pytest.approx((10.0, 10.0))


def test_loads_lie_evenly_between_the_two() -> None:
    assert loads(1.0, 5.0, 3) == [2.0, 3.0, 4.0]
    with pytest.raises(BadInput, match="no load between"):
        loads(5.0, 5.0, 3)
    with pytest.raises(BadInput, match="one load or more"):
        loads(1.0, 5.0, 0)


def test_no_prompt_is_used_twice() -> None:
    groups = list(batches(requests(7), [3, 4]))
    assert [r.tokens for group in groups for r in group] == list(range(10, 17))
    with pytest.raises(BadInput, match="too few prompts"):
        list(batches(requests(6), [3, 4]))


def test_few_requests_say_nothing_of_piling_up() -> None:
    assert not piled_up(offered(50.0, 8))
    with pytest.raises(BadInput, match="no steady latency"):
        point([offered(50.0, 4)], 8)


def test_requests_count_while_load_is_steady() -> None:
    """Neither those that meet an idle server nor those that leave one behind; rates are of those that count."""
    served = offered(5.0, 20)
    counted, span_s = steady(served[::-1])
    assert counted == served[4:18] and span_s == served[18].arrived_s - served[4].arrived_s
    assert point([served], 8).rps == 14 / span_s


def test_repeats_are_pooled() -> None:
    """All repeats count as one load, which is overloaded only if most of them are."""
    repeats = [offered(rate, 90, seed) for seed, rate in enumerate((5.0, 6.0, 20.0))]
    alone, together = [point([served], 8) for served in repeats], point(repeats, 8)
    assert [p.saturated for p in alone] == [False, False, True] and not together.saturated
    assert point(repeats[1:], 8).saturated
    assert together.requests == sum(p.requests for p in alone)
    assert together.latency_s == pytest.approx(np.mean([p.latency_s for p in alone]))
    assert 1 / together.rps == pytest.approx(np.mean([1 / p.rps for p in alone]))


def test_points_are_read_back_by_the_fit(tmp_path: Path) -> None:
    single = [
        msgspec.structs.replace(point([offered(rps, 60, seed)], 8, 0.9, seed), saturated=rps > 3)
        for rps in (1.0, 2.0, 4.0)
        for seed in (0, 1)
    ]
    pooled = [point([offered(rps, 60, seed) for seed in (0, 1)], 8, 0.9) for rps in (1.0, 2.0, 4.0)]
    write_tables(tmp_path, [Series(8, 0.9, 0.5, 5.0, pooled, single)])
    points, latency_s = read_points(tmp_path / "points.csv")
    assert latency_s.tolist() == [p.latency_s for p in single[:4]]
    assert points.form == "speculation" and points.rps.tolist() == [p.rps for p in single[:4]]
    assert np.array(repeats_of(tmp_path / "points.csv")).tolist() == [0, 1, 0, 1]
    assert read_points(tmp_path / "pooled.csv")[1].tolist() == [p.latency_s for p in pooled]
    assert len(read_points(tmp_path / "all.csv", piled_up=True)[1]) == 6
    assert read_points(tmp_path / "all.csv")[1].tolist() == latency_s.tolist()
    (series,) = read_series(tmp_path / "points.csv")
    assert (series.k, series.imposed, series.repeat.tolist()) == (8, 0.9, [0, 1, 0, 1])


def test_a_table_without_prefill_has_no_ratios(tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text("rps,latency_s,alpha,k,decode,repeat\n1,0.5,0.0,0,16,0\n")
    with pytest.raises(BadInput, match="needs the columns alpha, k, prefill, decode and repeat"):
        read_series(tmp_path / "points.csv")


@pytest.mark.parametrize("text", ["high", "nan", "1.5", "-0.1"])
def test_an_imposed_rate_that_is_none_is_one_line(tmp_path: Path, text: str) -> None:
    series = Series(8, 0.9, 0.5, 5.0, [], [point([offered(1.0, 60)], 8, 0.9, 0)])
    write_tables(tmp_path, [series])
    rows = (tmp_path / "points.csv").read_text().splitlines()
    header, place = rows[0], rows[0].split(",").index("imposed")
    cells = rows[1].split(",")
    (tmp_path / "wrong.csv").write_text("\n".join([header, ",".join([*cells[:place], text, *cells[place + 1 :]])]))
    with pytest.raises(BadInput, match=r"wrong.csv line 2: imposed must be (a number|in \[0, 1\]), not"):
        read_series(tmp_path / "wrong.csv")


def test_percentiles_need_enough_requests() -> None:
    few, some, many = (point([offered(2.0, count)], 8) for count in (200, 400, 1600))
    assert few.latency_p95_s is None and some.latency_p95_s is not None and some.latency_p99_s is None
    assert many.latency_p99_s is not None and many.latency_p99_s > (many.latency_p95_s or 0)


SMALL = LoadConfig(
    kind="virtual", windows=(0, 4), alphas=(0.8,), rates=3, requests=40, repeats=2, at_once=8, response=(16, 24),
    draft_ms=4.0, network_ms=10.0,
)  # fmt: skip


def test_every_load_series_and_repeat_has_arrivals_of_its_own(tmp_path: Path) -> None:
    told: list[str] = []
    found = measure(SMALL, tmp_path / "a", told.append)
    assert measure(SMALL, tmp_path / "a", told.append) == found
    assert measure(SMALL, tmp_path / "b", told.append) == found  # virtual time repeats
    gaps = set()
    for path in sorted((tmp_path / "a").glob("series-*.json")):
        repeat = msgspec.json.decode(path.read_bytes(), type=Repeat)
        for rps, served in zip(repeat.range.loads, repeat.served, strict=True):
            times = np.sort([one.arrived_s for one in served])
            gaps.add(tuple(np.round(np.diff(times)[:3] * rps, 6)))
    assert len(gaps) == 2 * 2 * 3  # scaled to the same rate, no two are one path
    assert [len(series.points) for series in found] == [3, 3] and [len(series.single) for series in found] == [6, 6]
    rows = ratios(read_series(tmp_path / "a" / "all.csv"))
    assert [(row.k, row.imposed) for row in rows] == [(4, 0.8)] and rows[0].c1_ratio.low < rows[0].c1_ratio.value


@pytest.mark.parametrize(
    "given",
    [{"windows": ()}, {"windows": (-1,)}, {"windows": (1000,)}, {"alphas": (1.5,)}, {"rates": 0}, {"at_once": 1}],
)
def test_what_cannot_be_measured_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        LoadConfig(**given)  # type: ignore[arg-type]


def test_the_target_alone_is_one_series() -> None:
    assert LoadConfig(windows=(0, 4), alphas=(0.5, 0.8)).series == [(0, None), (4, 0.5), (4, 0.8)]
    assert LoadConfig(windows=(4,), alphas=()).series == [(4, None)]


def test_acceptance_rates_that_are_nearly_equal_have_files_of_their_own() -> None:
    """The second series was a copy of the first."""
    assert [_named(4, alpha) for alpha in (None, 0.7, 0.7000001, 1.0)] == [
        "k4", "k4-alpha0.7", "k4-alpha0.7000001", "k4-alpha1",
    ]  # fmt: skip
