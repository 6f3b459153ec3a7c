"""`testbed optim bandwidth` and `plan`: output documents of the contract, and one-line errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from testbed.cli.optim.group import app
from testbed.errors import BadInput
from testbed.optim.tasks import Problem, load_problem, plan
from tests.support.batching import Instance, Node


def document(count: int = 12, **changed: Any) -> dict[str, Any]:
    """The example of the contract, with more tasks."""
    rng = np.random.default_rng(0)
    some = [
        {"input_tokens": int(n), "power_w": 0.2, "gain": float(g)}
        for n, g in zip(rng.integers(1, 513, count), 10 ** rng.uniform(-13, -9, count), strict=True)
    ]
    return {
        "bandwidth_hz": 2e7, "noise_w": 2.5e-14, "tasks": some, "bits_per_token": None,
        "draft_model": {"layers": 22, "hidden": 2048, "ffn": 5632},
        "verify_model": {"layers": 32, "hidden": 4096, "ffn": 11008},
        "cost": {"c1_draft": 4.11e-13, "c2_draft": 5.6e-4, "c1_verify": 2.08e-14, "c2_verify": 1.28e-2},
        "memory_bytes": 5e9, "max_output_tokens": 64, "alpha": 0.8, "max_window": 10, **changed,
    }  # fmt: skip


def write(folder: Path, content: dict[str, Any]) -> str:
    path = folder / "cell.json"
    path.write_text(json.dumps(content))
    return str(path)


def answer(*arguments: str) -> Any:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def refusal(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert isinstance(done.exception, BadInput), done.output
    assert "\n" not in str(done.exception)
    return str(done.exception)


def test_bandwidth_ends_all_uploads_at_once(tmp_path: Path) -> None:
    content = document()
    found = answer("bandwidth", "--tasks", write(tmp_path, content), "--json")
    assert set(found) == {"bandwidth", "communication_s", "rates_mbps"}
    assert sum(found["bandwidth"]) == pytest.approx(1)
    for task, share in zip(content["tasks"], found["bandwidth"], strict=True):
        bits = task["input_tokens"] * 16 * (2048 + 4096)
        rate = share * 2e7 * np.log2(1 + task["power_w"] * task["gain"] / 2.5e-14)
        assert bits / rate == pytest.approx(found["communication_s"])
    assert found["rates_mbps"] == pytest.approx([
        share * 20 * np.log2(1 + task["power_w"] * task["gain"] / 2.5e-14)
        for task, share in zip(content["tasks"], found["bandwidth"], strict=True)
    ])  # fmt: skip
    uniform = answer("bandwidth", "--tasks", write(tmp_path, content), "--policy", "uniform", "--json")
    assert uniform["bandwidth"] == pytest.approx([1 / 12] * 12)
    assert uniform["communication_s"] > found["communication_s"]


def test_bandwidth_needs_no_models_where_the_bits_are_given(tmp_path: Path) -> None:
    content = document(bits_per_token=1000.0)
    for key in ("draft_model", "verify_model", "cost", "memory_bytes", "max_output_tokens", "alpha", "max_window"):
        del content[key]
    path = write(tmp_path, content)
    scaled = answer("bandwidth", "--tasks", write(tmp_path, document()), "--json")["communication_s"] * 1000 / 98304
    assert answer("bandwidth", "--tasks", write(tmp_path, content), "--json")["communication_s"] == pytest.approx(
        scaled
    )
    assert refusal("plan", "--tasks", path) == "draft_model is missing"
    del content["bits_per_token"]
    assert refusal("bandwidth", "--tasks", write(tmp_path, content)) == "draft_model is missing"


@pytest.mark.parametrize("algorithm", ["best", "dp"])
@pytest.mark.parametrize("window", [None, 3])
def test_a_plan_is_what_the_equations_give_for_its_batches(tmp_path: Path, algorithm: str, window: int | None) -> None:
    content = document()
    chosen = [] if window is None else ["--window", str(window)]
    found = answer("plan", "--tasks", write(tmp_path, content), "--algorithm", algorithm, *chosen, "--json")
    assert set(found) == {
        "window", "batches", "bandwidth", "rates_mbps", "latency_s", "communication_s", "inference_s",
    }  # fmt: skip
    assert window in (None, found["window"])
    draft, verify, cost = content["draft_model"], content["verify_model"], content["cost"]
    one = Instance(
        inputs=tuple(task["input_tokens"] for task in content["tasks"]),
        draft=Node(**draft, c1=cost["c1_draft"], c2=cost["c2_draft"]),
        verify=Node(**verify, c1=cost["c1_verify"], c2=cost["c2_verify"]),
        memory_bytes=content["memory_bytes"], output_tokens=64, alpha=0.8,
    )  # fmt: skip
    assert sorted(task for batch in found["batches"] for task in batch) == list(range(12))
    assert all(one.fits(batch) for batch in found["batches"])
    assert found["inference_s"] == pytest.approx(one.latency_s(found["batches"], found["window"]), rel=1e-9)
    assert found["latency_s"] == pytest.approx(found["inference_s"] + found["communication_s"])
    shares = answer("bandwidth", "--tasks", write(tmp_path, content), "--json")
    assert (found["bandwidth"], found["communication_s"]) == (shares["bandwidth"], shares["communication_s"])


def test_baselines_are_planners_too(tmp_path: Path) -> None:
    path = write(tmp_path, document())
    best = answer("plan", "--tasks", path, "--json")["latency_s"]
    for name in ("dp", "no-pipeline", "no-batching", "fixed-window", "static", "max", "heuristic"):
        assert answer("plan", "--tasks", path, "--algorithm", name, "--json")["latency_s"] >= best * (1 - 1e-9)
    assert answer("plan", "--tasks", path, "--algorithm", "autoregressive", "--json")["window"] == 0
    assert answer("plan", "--tasks", path, "--bandwidth", "uniform", "--json")["latency_s"] > best


def test_tables_for_people(tmp_path: Path) -> None:
    path = write(tmp_path, document(40, memory_bytes=1.9e9))
    done = CliRunner().invoke(app, ["plan", "--tasks", path, "--algorithm", "no-batching"])
    assert done.exit_code == 0
    assert "batches        40" in done.stdout
    assert "and 20 more (--json has them all)" in done.stdout
    done = CliRunner().invoke(app, ["bandwidth", "--tasks", path])
    assert len(done.stdout.splitlines()) == 41


def test_help_has_examples() -> None:
    for command in ("bandwidth", "plan"):
        shown = CliRunner().invoke(app, [command, "--help"])
        assert shown.exit_code == 0
        assert f"testbed optim {command} --tasks cell.json" in shown.stdout


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tasks": []}, "tasks is empty; give at least one"),
        ({"tasks": [{"input_tokens": 3, "power_w": 0.2, "gain": 0.0}]}, "gain of a task must lie in"),
        ({"tasks": [{"input_tokens": 3, "power_w": -1, "gain": 1e-9}]}, "power_w of a task must lie in"),
        ({"tasks": [{"input_tokens": 0, "power_w": 0.2, "gain": 1e-9}]}, "input_tokens of a task must lie in"),
        ({"tasks": [{"input_tokens": 10**30, "power_w": 0.2, "gain": 1e-9}]}, "input_tokens of a task must lie in"),
        ({"tasks": [{"input_tokens": 3, "power_w": 0.2}]}, "missing required field `gain`"),
        ({"tasks": [{"input_tokens": 3.5, "power_w": 0.2, "gain": 1e-9}]}, "Expected `int`, got `float`"),
        ({"tasks": [{"input_tokens": 3, "power_w": 0.2, "gain": 1e-9, "x": 1}]}, "unknown field `x`"),
        ({"bandwidth_hz": 0}, "bandwidth_hz must lie in [1, 1e+13], not 0"),
        ({"noise_w": -1e-14}, "noise_w must lie in"),
        ({"bits_per_token": 0}, "bits_per_token must lie in"),
        ({"color": "red"}, "unknown field `color`"),
        ({"alpha": 1.5}, r"alpha must lie in [0, 1], not 1.5"),
        ({"memory_bytes": 1e8}, "memory_bytes is 1e+08"),
        ({"max_output_tokens": 0}, "max_output_tokens must lie in [1, 16777216], not 0"),
        ({"draft_model": {"layers": 0, "hidden": 1, "ffn": 1}}, "ffn of a model lie in [1, 16777216], not (0, 1, 1)"),
        ({"cost": None}, "cost is missing"),
        ({"bandwidth_hz": 5e-324}, "bandwidth_hz must lie in"),
        ({"memory_bytes": 1e308}, "memory_bytes must be positive and at most 1e+18"),
        ({"max_output_tokens": 2**63}, "max_output_tokens must lie in"),
        ({"max_window": 2**63}, "max_window must lie in [1, 256]"),
        ({"draft_model": {"layers": 10**18, "hidden": 1, "ffn": 1}}, "ffn of a model lie in"),
    ],
)  # fmt: skip
def test_invalid_documents_are_refused(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    path = write(tmp_path, document(**changed))
    assert said in refusal("plan", "--tasks", path, "--json")


def test_invalid_files_and_options_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, document())
    assert "No such file" in refusal("plan", "--tasks", str(tmp_path / "no.json"))
    (tmp_path / "broken.json").write_text("{")
    assert "broken.json" in refusal("bandwidth", "--tasks", str(tmp_path / "broken.json"))
    assert "window 11 is out of range" in refusal("plan", "--tasks", path, "--window", "11")
    assert "no planner 'x'; known: best, dp" in refusal("plan", "--tasks", path, "--algorithm", "x")
    assert "no bandwidth policy 'x'; known: optimal" in refusal("bandwidth", "--tasks", path, "--policy", "x")


def test_the_example_of_the_help_can_be_used(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["plan", "--help"], terminal_width=400).stdout
    text = " ".join(line.strip(" │") for line in shown[shown.index('{"bandwidth_hz"') :].split("╭")[0].splitlines())
    path = tmp_path / "cell.json"
    path.write_text(text)
    problem = load_problem(path)
    assert isinstance(problem, Problem)
    assert plan(problem)["batches"] == [[0]]
