"""Sweep files of edge SD batching's figures: tables that follow from the draws, plots, and what is refused."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from testbed.cli.optim.group import app
from testbed.config import load
from testbed.errors import BadInput
from testbed.experiments.edge.figures import (
    FiguresConfig,
    Panel,
    SystemLine,
    load_figures,
    run_figures,
)
from testbed.files import make_folder
from testbed.optim.figures import POINTS, draw
from testbed.optim.tasks import Problem, Task, plan
from tests.support.refusals import refuse

FILES = sorted((Path(__file__).parents[3] / "sweeps" / "edge").glob("*.yaml"))
SMALL = FiguresConfig(
    name="small",
    lines=(
        SystemLine(name="optimal"),
        SystemLine(name="uniform", policy="uniform"),
        SystemLine(name="static", algorithm="static"),
    ),
    panels=(
        Panel(name="a", axis="tasks", values=(3, 5), longest_output=32),
        Panel(name="b", axis="bandwidth_mhz", values=(10, 20, 40), tasks=4, longest_output=32),
    ),
    seeds=3,
    quoted=("9b",),
    draws=4,
)  # fmt: skip


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("figures") / "small"
    told: list[tuple[int, int]] = []
    document = run_figures(SMALL, out, lambda done, total, _: told.append((done, total)))
    assert [done for done, _ in told] == list(range(1, 7)) and {total for _, total in told} == {6}
    return out, document


def test_what_a_figure_leaves_behind(small: tuple[Path, dict[str, Any]]) -> None:
    out, document = small
    assert {path.name for path in out.glob("[!.]*")} == {
        "config.yaml", "points.csv", "draws.csv", "quoted.csv", "summary.json", "small.png", "small.svg",
    }  # fmt: skip
    assert load(FiguresConfig, out / "config.yaml") == SMALL
    assert len(rows(out / "points.csv")) == len(document["points"]) == 3 * 5
    assert len(rows(out / "draws.csv")) == 3 * 5 * 3
    assert json.loads((out / "summary.json").read_text())["rows"][0]["draws"] == 3


def test_every_draw_is_the_plan_of_its_cell(small: tuple[Path, dict[str, Any]]) -> None:
    out, _ = small
    chosen = {"optimal": ("dp", "optimal"), "uniform": ("dp", "uniform"), "static": ("static", "optimal")}
    for row in rows(out / "draws.csv"):
        if row["panel"] != "b" or row["x"] == "20.0":
            continue
        point = SMALL.panels[1].point(float(row["x"]), SMALL.lines[0])
        rng = np.random.default_rng(int(row["seed"]))
        metres = 400 * np.sqrt(rng.uniform(size=4))
        gains = 1e-6 * rng.exponential(size=4) * metres**-2
        inputs = draw(point, int(row["seed"])).inputs
        serving = point.serving
        problem = Problem(
            bandwidth_hz=1e6 * float(row["x"]), noise_w=10**-13.6, draft_model=serving.draft_model,
            verify_model=serving.verify_model, cost=serving.cost, memory_bytes=16e9, max_output_tokens=32, alpha=0.8,
            tasks=tuple(Task(input_tokens=int(n), power_w=0.2, gain=float(g)) for n, g in zip(inputs, gains)),  # noqa: B905
        )  # fmt: skip
        algorithm, policy = chosen[row["line"]]
        assert float(row["latency_s"]) == pytest.approx(plan(problem, algorithm, policy=policy)["latency_s"])


def test_points_are_means_of_their_draws(small: tuple[Path, dict[str, Any]]) -> None:
    out, _ = small
    for point in rows(out / "points.csv"):
        times = [
            float(row["latency_s"]) for row in rows(out / "draws.csv")
            if all(row[key] == point[key] for key in ("panel", "x", "line"))
        ]  # fmt: skip
        assert float(point["mean_s"]) == pytest.approx(math.fsum(times) / 3)
        assert float(point["low_s"]) <= float(point["mean_s"]) <= float(point["high_s"])
        assert float(point["median_s"]) == pytest.approx(sorted(times)[1])


def test_the_quoted_point_is_that_of_the_text(small: tuple[Path, dict[str, Any]]) -> None:
    (row,) = small[1]["quoted"]
    assert (row["figure"], row["paper_percent"], row["draws"]) == ("9b", 29.3, 4)
    assert row["low_percent"] <= row["median_percent"] <= row["high_percent"]
    assert row["inside"] == (row["low_percent"] <= 29.3 <= row["high_percent"])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_our_sweep_files_can_be_used(file: Path) -> None:
    config = load_figures(file)
    assert config.name == file.stem and config.seeds == 20
    assert config.draws == (20 if file.stem.startswith("readings") else 200)
    for panel in config.panels:
        for line in config.lines:
            points = [panel.point(value, line) for value in panel.values]
            assert len({(p.tasks, p.longest_input, p.longest_output, p.bandwidth_hz, p.alpha) for p in points}) == len(
                points
            )
    for name in config.quoted:
        quoted = next(point for point in POINTS if point.figure == name)
        panel = next((panel for panel in config.panels if panel.name == name), None)
        if panel is not None:
            values = {"tasks": quoted.tasks, "longest_input": quoted.longest_input, "alpha": quoted.alpha,
                      "longest_output": quoted.longest_output, "bandwidth_mhz": quoted.bandwidth_hz / 1e6}  # fmt: skip
            assert values[panel.axis] in panel.values
            assert (panel.draft, panel.verify) == (quoted.draft, quoted.verify)


def test_all_figures_have_a_file() -> None:
    assert [file.stem for file in FILES] == ["fig6", "fig7", "fig8", "fig9", "readings-others", "readings"]


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_bytes(msgspec.yaml.encode(msgspec.structs.replace(SMALL, quoted=())))
    done = CliRunner().invoke(app, ["figures", str(path), "--out", str(tmp_path / "out"), "--seeds", "2", "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["seeds"] == 2 and {row["draws"] for row in document["points"]} == {2}
    again = CliRunner().invoke(app, ["figures", str(path), "--out", str(tmp_path / "out")])
    assert isinstance(again.exception, BadInput) and "is not empty" in str(again.exception)
    few = CliRunner().invoke(app, ["figures", str(path), "--out", str(tmp_path / "few"), "--seeds", "1"])
    assert isinstance(few.exception, BadInput) and "2 draws or more" in str(few.exception)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: x", "give panels and lines, or quoted points"),
        ("name: x\nquoted: [5a]", "unknown quoted point '5a'; known: 7a"),
        ("name: x\nquoted: [7a]\nreadings: {}", "need an interpretation"),
        ("name: x\nquoted: [7a]\nreadings: {a: {outputs: none}}", "outputs"),
        ("name: x\nlines: [{name: a, algorithm: magic}]", "no planner 'magic'"),
        ("name: x\nlines: [{name: a, policy: magic}]", "no bandwidth policy 'magic'"),
        ("name: x\nlines: [{name: a}]\npanels: [{name: p, axis: alpha, values: []}]", "has no values"),
        ("name: x\nlines: [{name: a}]\npanels: [{name: p, axis: alpha, values: [0.5], draft: GPT}]", "no model 'GPT'"),
        ("name: x\nlines: [{name: a}]\npanels: [{name: p, axis: beta, values: [1]}]", "axis"),
        ("name: x\ncolour: red\nquoted: [7a]", "colour"),
        ("name: ../victim/photo\nquoted: [7a]", "name must be the name of a folder"),
        ("name: /tmp/photo\nquoted: [7a]", "name must be the name of a folder"),
        ("name: x\nlines: [{name: a}]\npanels: [{name: p, axis: tasks, values: [.nan]}]", "values must be finite"),
        ("name: x\nlines: [{name: a}]\npanels: [{name: p, axis: tasks, values: [2.5]}]", "whole number"),
        ("name: x\nlines: [{name: a}]\npanels: [{name: p, axis: tasks, values: [1.0e+23]}]", "in 1..1000000"),
        (
            "name: x\nlines: [{name: a}]\npanels: [{name: p, axis: alpha, values: [0.5], longest_input: 0}]",
            "lie in 1..",
        ),
        ("name: x\nlines: [{name: a, tasks: -3}]\npanels: [{name: p, axis: alpha, values: [0.5]}]", "lie in 1.."),
        ("name: x\nlines: [{name: a}, {name: a}]\npanels: [{name: p, axis: tasks, values: [2]}]", "different names"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "figure.yaml"
    path.write_text(text)
    refuse(lambda: load_figures(path), BadInput, words, "figure.yaml")


def test_values_that_cannot_be_used(tmp_path: Path) -> None:
    for axis, value in (("tasks", 2.5), ("longest_input", 0.0), ("alpha", 1.0), ("bandwidth_mhz", 0.0)):
        panel = Panel(name="p", axis=axis, values=(value,))  # type: ignore[arg-type]
        refuse(lambda panel=panel, value=value: panel.point(value, SystemLine(name="a")), BadInput, "panel 'p'")
    (tmp_path / "file").write_text("")
    refuse(lambda: make_folder(tmp_path / "file" / "out"), BadInput, "cannot create")


def test_names_are_no_mathematics(tmp_path: Path) -> None:
    """They left a traceback after everything was computed."""
    config = FiguresConfig(
        name="x",
        lines=(SystemLine(name="$\\nope$"),),
        panels=(Panel(name="$\\no$", axis="tasks", values=(2,)),),
        seeds=2,
    )
    run_figures(config, tmp_path / "out", lambda *_: None)
    assert (tmp_path / "out" / "x.svg").stat().st_size > 1000
