"""The load ramp: paired requests, the code that serves, and a comparison that can come out either way."""

from __future__ import annotations

import csv
from pathlib import Path

import msgspec
import numpy as np
import pytest

from testbed.errors import BadInput
from testbed.experiments.latency.ramp.climb import Answered, RampRun, arrivals, counts
from testbed.experiments.latency.ramp.config import HINTS, RampConfig
from testbed.experiments.latency.ramp.measure import measure
from testbed.experiments.latency.ramp.rows import table, write
from testbed.experiments.latency.ramp.virtual import VirtualRamp
from testbed.experiments.results.claims import claimed

SMALL = RampConfig(
    windows=(0, 4), loads=(3.0, 20.0), requests=60, step_s=0.0, seeds=(0,), response=(16, 24), learn_from=1.0
)


def test_arrivals_are_poisson_at_every_load_and_the_same_for_all() -> None:
    found = arrivals([2.0, 50.0], [4000, 3000], 1)
    assert found == arrivals([2.0, 50.0], [4000, 3000], 1) != arrivals([2.0, 50.0], [4000, 3000], 2)
    times = np.array([at_s for _, at_s in found])
    assert [step for step, _ in found] == [0] * 4000 + [1] * 3000
    for part, load in ((np.diff(times[:4000]), 2.0), (np.diff(times[4000:]), 50.0)):
        assert part.mean() == pytest.approx(1 / load, rel=0.05) and part.std() == pytest.approx(1 / load, rel=0.07)
        assert part.min() > 0


def test_steps_last_long_enough_and_hold_enough() -> None:
    assert counts(RampConfig(requests=100, step_s=10.0), [1.0, 30.0]) == [100, 300]


def test_a_virtual_ramp_repeats_and_pairs_its_requests() -> None:
    ramp = VirtualRamp(SMALL, lambda line: None)
    runs = {policy: ramp.run(policy, 0, SMALL.loads) for policy in SMALL.policies}
    assert ramp.run("4", 0, SMALL.loads) == runs["4"]
    assert [a.at_s for a in runs["0"].answered] == [a.at_s for a in runs[HINTS].answered]
    assert [a.tokens for a in runs["0"].answered] == [a.tokens for a in runs["4"].answered]
    assert all(a.drafted == 0 for a in runs["0"].answered)
    four = runs["4"].answered
    tried = sum(a.accepted + a.rejections for a in four)
    assert sum(a.accepted for a in four) / tried == pytest.approx(SMALL.alpha, abs=0.03)
    assert runs["0"].switches is None and runs[HINTS].switches is not None


def test_without_load_latency_is_that_of_the_profile() -> None:
    """One request at a time: its prompt's pass, its tokens', and the link."""
    config = RampConfig(
        windows=(0,), loads=(0.01,), requests=8, step_s=0.0, prompt=(100, 100), response=(10, 10), network_spread=0.0
    )
    found = VirtualRamp(config, lambda line: None).run("0", 0, config.loads)
    a, b, r, c = 3.314e-5, 3.450e-8, 4.620e-6, 1.486e-2  # WISP, Table 12
    prompt_s = c + a * 100 + b * 100 * 100
    token_s = sum(c + a + b * (cached + 1) + r * cached for cached in range(100, 109))
    assert [x.latency_s for x in found.answered] == pytest.approx([0.04 + prompt_s + token_s] * 8)


@pytest.mark.long
def test_a_bs_that_starts_under_load_does_not_leave_speculation_off() -> None:
    """Where most UEs stream, a round that speculates waits longer than if all did: no reason to keep it off."""
    config = RampConfig(windows=(0, 4), loads=(20.0,), requests=300, step_s=0.0)
    ramp = VirtualRamp(config, lambda line: None)
    took = {
        policy: np.mean([a.latency_s for seed in (0, 1) for a in ramp.run(policy, seed, config.loads).answered[75:]])
        for policy in config.policies
    }
    assert took[HINTS] < 1.05 * took["4"] < 0.85 * took["0"]


def made(policy: str, latencies: list[list[float]], seed: int = 0) -> RampRun:
    answered = [
        Answered(step, float(i), value, 10, 5, 10, 4, 3)
        for step, values in enumerate(latencies)
        for i, value in enumerate(values)
    ]
    return RampRun(policy, seed, [1.0, 2.0], answered)


def compare(ours: list[list[float]], seeds: int = 3) -> tuple[list[bool | None], list[bool | None], bool]:
    config = RampConfig(windows=(0, 4), seeds=tuple(range(seeds)), settle=0.5)
    runs = []
    for seed in config.seeds:
        for policy, latencies in (
            ("0", [[1.0] * 100, [3.0] * 100]), ("4", [[2.0] * 100, [2.0] * 100]), (HINTS, ours),
        ):  # fmt: skip
            runs.append(made(policy, latencies, seed))
    found = table(config, runs)
    assert [row["best_window"] for row in found.loads] == [0, 4]
    return [row["within"] for row in found.loads], [row["better"] for row in found.ramp], found.holds


def test_the_comparison_says_what_holds_and_what_does_not() -> None:
    assert compare([[1.01] * 100, [2.0] * 100]) == ([True, True], [True, True], True)
    assert compare([[1.03] * 100, [2.0] * 100]) == ([False, True], [True, True], False)
    assert compare([[9.0] * 50 + [1.0] * 50, [2.0] * 100]) == ([True, True], [False, False], False)


def test_a_single_seed_decides_nothing() -> None:
    assert compare([[1.01] * 100, [2.0] * 100], seeds=1) == ([None, None], [None, None], False)


def test_intervals_hold_the_ratio_and_leave_undecided_what_seeds_do_not_agree_on() -> None:
    random = np.random.default_rng(0)
    verdicts, widths = [], []
    for scatter in (0.002, 0.1):
        config, runs = RampConfig(windows=(4,), seeds=(0, 1, 2, 3, 4), settle=0.0), []
        for seed in config.seeds:
            base = random.exponential(1.0, 400) + 1
            ours = ((1 + scatter * random.standard_normal()) * base).tolist()
            runs += [made("4", [base.tolist()] * 2, seed), made(HINTS, [ours] * 2, seed)]
        row = table(config, runs).loads[0]
        assert row["low"] < row["ratio"] < row["high"]
        verdicts.append(row["within"])
        widths.append(row["high"] - row["low"])
    assert verdicts == [True, None] and widths[1] > 10 * widths[0]


def test_a_ramp_goes_on_where_it_stopped_and_leaves_its_files(tmp_path: Path) -> None:
    out = tmp_path / "ramp"
    told: list[str] = []
    runs = measure(SMALL, out, told.append)
    again: list[str] = []
    (out / "run-4-seed0.json").unlink()
    assert measure(SMALL, out, again.append) == runs
    assert sum("window" in line for line in told) == 3 and sum("window" in line for line in again) == 1
    paths = write(table(SMALL, runs), out)
    assert [path.name for path in paths] == ["points.csv", "loads.csv", "ramp.csv", "switches.csv", "ramp.png"]
    with paths[0].open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6 and {row["policy"] for row in rows} == {"0", "4", HINTS}
    with pytest.raises(BadInput, match="holds another ramp"):
        measure(RampConfig(), out, told.append)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"accepted": 10**9}, "damaged"),
        ({"accepted": 10**18}, "damaged"),
        ({"tokens": 0}, "damaged"),
        ({"at_s": -1.0}, "damaged"),
        ({"latency_s": 1e15}, "damaged"),
        ({"rejections": 10**6}, "damaged"),
        ({"step": 1}, "another run"),
    ],
)
def test_a_kept_run_that_cannot_be_is_refused(change: dict[str, float], said: str, tmp_path: Path) -> None:
    path = one_run(tmp_path)
    found = msgspec.json.decode(path.read_bytes())
    found["answered"][0] |= change
    path.write_bytes(msgspec.json.encode(found))
    with pytest.raises(BadInput, match=rf"run-4-seed0\.json is .*{said}.*remove it"):
        measure(SMALL, tmp_path, lambda line: None)


@pytest.mark.parametrize("change", [{"seed": 1}, {"policy": "0"}, {"loads": [1.0, 2.0]}, {"answered": []}])
def test_a_kept_run_of_another_seed_or_load_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    path = one_run(tmp_path)
    path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | change))
    with pytest.raises(BadInput, match="of another run"):
        measure(SMALL, tmp_path, lambda line: None)


def one_run(out: Path) -> Path:
    """A run that is kept; the directory is that of `SMALL`."""
    run = VirtualRamp(SMALL, lambda line: None).run("4", 0, SMALL.loads)
    with claimed(SMALL, out, "ramp"):
        for policy in SMALL.policies:
            kept = out / f"run-{policy}-seed0.json"
            kept.write_bytes(msgspec.json.encode(msgspec.structs.replace(run, policy=policy)))
    return out / "run-4-seed0.json"


def test_a_missing_run_is_named() -> None:
    with pytest.raises(BadInput, match="window hinted with seed 0"):
        table(RampConfig(windows=(0,), seeds=(0,)), [made("0", [[1.0] * 10, [1.0] * 10])])


@pytest.mark.parametrize(
    "given",
    [{"windows": ()}, {"windows": (1, 1)}, {"windows": (-1,)}, {"controller": "max_window=0"}, {"loads": (2.0, 1.0)},
     {"loads": (0.0,)}, {"seeds": ()}, {"alpha": 1.2}, {"requests": 1}, {"prompt": (5, 2)}, {"draft_ms": -1.0},
     {"step_s": -1.0}, {"mixed": 1.0}, {"learn_from": 0.0}, {"loads": (1e18,)}, {"loads": (9e4,), "step_s": 60.0}],
)  # fmt: skip
def test_what_cannot_be_climbed_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        RampConfig(**given)  # type: ignore[arg-type]


def test_the_controller_learns_pass_times_while_it_serves() -> None:
    """From twice or half of the true times, a ramp ends with about the windows of one that knew them."""
    base = RampConfig(windows=(4,), loads=(12.0,), requests=300, step_s=0.0, seeds=(0,))
    taken = {}
    for factor in (0.5, 1.0, 2.0):
        config = msgspec.structs.replace(base, learn_from=factor)
        answered = VirtualRamp(config, lambda line: None).run(HINTS, 0, config.loads).answered[100:]
        taken[factor] = np.mean([a.latency_s for a in answered])
    assert taken[0.5] == pytest.approx(taken[1.0], rel=0.05) and taken[2.0] == pytest.approx(taken[1.0], rel=0.05)


def test_mixed_ues_and_links_that_follow_a_trace() -> None:
    even, mixed, faded = (
        VirtualRamp(msgspec.structs.replace(SMALL, **more), lambda line: None).run("4", 0, SMALL.loads).answered
        for more in ({}, {"mixed": 0.9}, {"link": "congested"})
    )
    by_ue = [[a.latency_s / a.rounds for a in run[:60]] for run in (even, mixed, faded)]
    means = np.array([[np.mean(run[ue::16]) for ue in range(16)] for run in by_ue])
    assert means[1].std() > 2 * means[0].std()
    assert means[2].mean() > 1.5 * means[0].mean()  # a congested cell's RTT is 114 ms, not 40


def test_profiles_without_eq_19_are_refused() -> None:
    with pytest.raises(BadInput, match="coefficients"):
        VirtualRamp(RampConfig(profile="edge-sd"), lambda line: None)
