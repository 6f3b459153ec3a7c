"""How far the latency model holds, and lines through its coefficients: data made by rules that are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from testbed.errors import BadInput
from testbed.experiments.inputs.formats import Example
from testbed.experiments.latency.lengths import drawn
from testbed.experiments.latency.limits import HOLDS, limits
from testbed.experiments.plots.scaling import by_size, plot_lengths, plot_sizes
from testbed.experiments.runs.prepare import Prompt, Workload
from testbed.optim.serving.fit import ServingFit
from testbed.optim.serving.lengths import by_lengths
from testbed.optim.serving.points import Points

HEADER = "rps,latency_s,latency_p95_s,latency_p99_s,saturated"


def write(path: Path, breaks_at: float) -> Path:
    """The mean by eq. 1; p95 three times as much, and p99 by another rule from some x on; the last load piles up."""
    lines = [HEADER]
    for x in np.linspace(0.05, 1.15, 45):
        mean = 1.2 / (1 - min(x, 0.96))
        p99 = 5 * 1.2 / (1 - x) if x < breaks_at else 40 * 1.2 / (1 - min(x, 0.96))
        lines.append(f"{x / 0.07},{mean},{3 * mean},{p99},{int(x > 0.93)}")
    path.write_text("\n".join(lines))
    return path


def test_each_statistic_is_held_against_a_fit_of_its_own(tmp_path: Path) -> None:
    found = limits(write(tmp_path / "all.csv", 0.8))
    c1, c2 = found.fits["latency_s"].values
    assert (c1, c2) == pytest.approx((1.2, 0.07), rel=1e-3)
    assert found.fits["latency_p95_s"].values[0] == pytest.approx(3.6, rel=1e-3)
    assert found.holds_to["latency_s"] == found.holds_to["latency_p95_s"] == 0.9  # pile-ups lie above x = 0.93
    late = found.holds_to["latency_p99_s"]
    assert late is None or late < 0.9
    assert sum(row["loads"] for row in found.errors) == 45
    beyond = [row for row in found.errors if row["from_x"] >= 1.0]
    assert beyond and all(row["latency_s"] is None and row["piled_up"] == row["loads"] for row in beyond)
    assert found.errors[0]["latency_s"] < HOLDS


def test_files_without_the_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("rps,latency_s\n1,1\n2,2\n")
    with pytest.raises(BadInput, match="one column saturated"):
        limits(tmp_path / "x.csv")
    (tmp_path / "y.csv").write_text(f"{HEADER}\n1,1,1,1,1\n2,2,2,2,1\n")
    with pytest.raises(BadInput, match="no load below saturation"):
        limits(tmp_path / "y.csv")


def fit_of(values: list[float]) -> ServingFit:
    form = "speculation" if len(values) == 6 else "load"
    return ServingFit(form, np.array(values), np.zeros((0, len(values))), 1.0, 9)


def test_lines_over_size_are_those_that_made_the_coefficients(tmp_path: Path) -> None:
    fits = {size: fit_of([0.1 + 0.02 * size, 0.3, *[0.001 * size] * 4]) for size in (3.0, 12.0, 40.0)}
    lines = by_size(fits)
    assert lines["c1_p"][:2] == pytest.approx((0.1, 0.02)) and lines["c1_v"].slope == pytest.approx(0.0, abs=1e-12)
    assert lines["c1_p"].r2 == pytest.approx(1.0)
    assert plot_sizes(fits, tmp_path / "sizes.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(BadInput, match="two sizes"):
        by_size({3.0: fits[3.0]})
    with pytest.raises(BadInput, match="different forms"):
        by_size({3.0: fits[3.0], 4.0: fit_of([1.0, 0.1])})


def test_coefficients_are_plotted_against_length(tmp_path: Path) -> None:
    rows = [(a, k, p, x) for a in (0.5, 0.8, 1.0) for k in (0, 2, 6) for p in (256, 512) for x in (0.1, 0.4, 0.7)]
    alpha, k, prefill, x = np.array(rows).T
    cycles = 64 / np.array([sum(a**j for j in range(int(n) + 1)) for a, n in zip(alpha, k, strict=True)])
    c1, c2 = 0.3 * prefill / 512 + cycles * (0.02 + k * 0.002), 0.01 * prefill / 512 + cycles * (4e-4 + k * 8e-5)
    points = Points(x / c2, alpha, k, prefill, np.full(len(rows), 64.0))
    found = by_lengths(points, c1 / (1 - x))
    assert plot_lengths(found, tmp_path / "plots" / "lengths.png").read_bytes().startswith(b"\x89PNG")


def test_drawn_prompts_have_the_length_asked_for_and_are_all_different() -> None:
    class Words:
        vocab_size = 50

    prompts = [Prompt([1, 2, 3], Example(str(i))) for i in range(40)]
    work = Workload(prompts, prompts[:2], Words(), "x")  # type: ignore[arg-type]
    found = drawn(work, 24, 0)
    assert {len(p.ids) for p in [*found.prompts, *found.warmup]} == {24}
    assert len({tuple(p.ids) for p in found.prompts}) == 40
    assert min(min(p.ids) for p in found.prompts) >= 0 and max(max(p.ids) for p in found.prompts) < 50
    assert found.prompts == drawn(work, 24, 0).prompts != drawn(work, 24, 1).prompts
    with pytest.raises(BadInput, match="tokenizer"):
        drawn(Workload(prompts, [], None, "x"), 24, 0)
