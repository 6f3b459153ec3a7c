"""Bad input: one line on stderr that says what would be right, exit code 2, no traceback, nothing written."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.cli.main import main

DRAFTER = ["--drafter", "x.gguf", "--tokenizer", "y"]
SLO = ["bs", "serve", "--engine", "synthetic", "--scheduler", "slo"]
CASES = [
    (["nope"], "No such command"),
    (["bs", "serve", "--bogus"], "No such option"),
    (["bs", "serve", "--model", "/no/such/dir"], "no model at /no/such/dir"),
    (["bs", "serve", "--engine", "abacus"], "vllm, transformers, llama, synthetic"),
    (["bs", "serve", "--engine", "synthetic", "--bind", "localhost"], "tcp://HOST:PORT"),
    (["bs", "serve", "--engine", "synthetic", "--bind", "tcp://127.0.0.1:99999"], "bad address"),
    (["bs", "serve", "--engine", "synthetic", "--scheduler", "dice"], "known: fcfs, slo"),
    (["bs", "serve", "--engine", "synthetic", "--coefficients", "probe"], "--coefficients goes with --scheduler slo"),
    (["bs", "serve", "--engine", "synthetic", "--chunk-tokens", "9"], "chunk-tokens must be at least 16, not 9"),
    ([*SLO, "--coefficients", "abacus"], "no profile 'abacus'"),
    ([*SLO, "--coefficients", "wisv"], "no coefficients of eq. 19"),
    ([*SLO, "--coefficients", "no.json"], "cannot read no.json"),
    (["bs", "serve", "--engine", "synthetic", "--metrics", "no/such/m.jsonl"], "cannot write no/such/m.jsonl"),
    (["bs", "serve", "--metrics", "m.jsonl", "--metrics-interval-s", "0"], "s must be at least 0.01"),
    (["ue", "run", *DRAFTER, "--speed-tps", "0"], "positive number of tokens a second"),
    (["ue", "run", *DRAFTER, "--accept-slower"], "give --speed-tps"),
    (["ue", "run", "--bs", "http://x:1"], "tcp://HOST:PORT"),
    (["ue", "run", *DRAFTER, "--window", "0"], "1..256"),
    (["ue", "run", *DRAFTER, "--window", "10000"], "1..256"),
    (["ue", "run", *DRAFTER, "--protocol", "smoke"], "known: target-only, colocated, auto, greedy, fh, sh"),
    (["ue", "run", *DRAFTER, "--threshold", "2"], "[0, 1]"),
    (["ue", "run", *DRAFTER, "--max-tokens", "0"], "1..1048576"),
    (["ue", "run", *DRAFTER, "--concurrency", "0"], "at least 1"),
    (["ue", "run", *DRAFTER, "--warmup", "-1"], "at least 0"),
    (["ue", "run", *DRAFTER, "--timeout", "0"], "positive"),
    (["ue", "run", *DRAFTER, "--prompt", "hi"], "tokenizer.json is missing"),
    (["ue", "run", "--prompt", "a", "--prompt-ids", "1"], "not both"),
    (["ue", "run", "--prompt-ids", "1,a"], "integers"),
    (["ue", "run", "--drafter", "x.gguf", "--prompt-ids", ","], "empty"),
    (["ue", "run", "--drafter", "x.gguf", "--prompt-ids", "1,2"], "x.gguf"),
    (["ue", "run", "--drafter", __file__, "--prompt-ids", "1,2"], "not a GGUF file"),
    (["ue", "run", "--prompt", "  "], "empty"),
    (["ue", "run", "--dataset", "bundled:nope"], "bundled:test"),
    (["ue", "run", "--dataset", "/no/such.jsonl"], "cannot read"),
    (["ue", "run", "--limit", "0"], "at least 1"),
    (["ue", "run", "--limit", "1" + "0" * 19], "from 1 to 1048576"),
    (["latency", "measure", "--virtual", "--out", "x", "--seed", "-1"], "seed must be at least 0"),
    (["latency", "measure", "--virtual", "--out", "x", "--at-once", "1" + "0" * 22], "at-once must lie in 2..10000"),
    (["latency", "measure", "--virtual", "--out", "x", "--rates", "1" + "0" * 22], "rates must lie in 1..1000"),
    (["latency", "measure", "--virtual", "--out", "x", "--ues", "1" + "0" * 22], "ues must lie in 1..100000"),
    (["ue", "run", *DRAFTER, "--window-rule", "best"], "known: fixed, predicted, before-rejection"),
    (["ue", "run", *DRAFTER, "--window-rule", "gain", "--predictor", "nowhere"], "no predictor in nowhere"),
    (["ue", "run", *DRAFTER, "--predictor", "nowhere"], "a fixed window needs no predictor"),
    (["ue", "run", "--pad", "nowhere"], "no profile 'nowhere'"),
    (["ue", "run", "--pad", "wisv", "--protocol", "split"], "only the uplink is padded"),
    (["ue", "agent", "--listen", "here"], "tcp://HOST:PORT"),
    (["ue", "agent", "--listen", "tcp://0.0.0.0:*"], "give --keys DIR"),
    (["field", "run", "nowhere"], "no plan 'nowhere'"),
    (["field", "run", "rehearsal", "--emulate"], "No such option"),
    (["field", "run", "field-example", "--yes"], "place near: lab holds no client.key_secret"),
    (["field", "deploy", "field-example"], "place near: lab holds no client.key_secret"),
    (["field", "report", "nowhere"], "is not a field run"),
    (["field", "collect", "nowhere"], "is not a field run"),
    (["field", "deploy", "rehearsal"], "no place of this plan has an agent"),
    (["predictor", "collect", "--out", "x", "--prompts", "0"], "at least 1"),
    (["predictor", "collect", "--out", "x", "--window", "0"], "1..256"),
    (["predictor", "train", "--data", "nowhere", "--out", "x"], "predictor collect"),
    (["predictor", "train", "--data", "nowhere", "--out", "x", "--recall", "2"], "recall must lie in (0, 1)"),
    (["predictor", "train", "--data", "nowhere", "--out", "x", "--models", "svm"], "known: mlp, lightgbm"),
    (["predictor", "eval", "--predictor", "nowhere"], "no predictor in nowhere"),
    (["predictor", "eval", "--data", "nowhere"], "predictor collect"),
    (["demo", "--prompts", "0"], "at least 1"),
    (["demo", "--window", "0"], "1..256"),
    (["demo", "--methods", "foo"], "known: target-only"),
    (["demo", "--channel", "kind=telepathy"], "known: none, proxy, virtual, tc, trace"),
    (["demo", "--channel", "kind=virtual,profile=abacus"], "no profile 'abacus'"),
    (["demo", "--channel", "kind=trace,file=nowhere"], "no trace 'nowhere'"),
    (["demo", "--channel", "kind=tc,outage_s=1,outage_every_s=5"], "outages"),
    (["demo", "--auto-rule", "coin"], "known: rtt, latency"),
    (["bs", "serve", "--judge", "stern"], "known: strict, digits, head, table, budget"),
    (["bs", "serve", "--head", "nowhere"], "no decision head at nowhere"),
    (["bs", "serve", "--judge", "budget"], "needs a quality budget"),
    (["bs", "serve", "--judge", "budget", "--quality-budget", "1.5"], "quality-budget must lie in (0, 1), not 1.5"),
    (["bs", "serve", "--max-batch", "0"], "max-batch must be at least 1, not 0"),
    (["ue", "run", "--top-p", "0"], "top-p must lie in (0, 1], not 0"),
    (["bs", "serve", "--engine", "synthetic", "--judge", "digits"], "which a target without a tokenizer lacks"),
    (["demo", "--threshold", "0.5", "--head", "nowhere"], "no decision head at nowhere"),
    (["demo", "--threshold", "0.5", "--head", "bundled:nowhere"], "no decision head bundled:nowhere"),
    (["demo", "--judge", "digits"], "at threshold 0 judge digits keeps no mismatch"),
    (["demo", "--judge", "digits", "--threshold", "1", "--quality-budget", "0.1"], "has no quality budget"),
    (["demo", "--threshold", "1.5"], "[0, 1]"),
    (["demo", "--hidden-bits", "5"], "at 16, 8, 4 bits an element, not 5"),
    (["ue", "run", *DRAFTER, "--hidden-bits", "32"], "at 16, 8, 4 bits an element, not 32"),
    (["ue", "run", *DRAFTER, "--csi", "maybe"], "use none, passive"),
    (["ue", "run", *DRAFTER, "--auto-rule", "coin"], "known: rtt, latency"),
    (["channel", "cost", "--window", "0"], "window must lie in 1..1000000"),
    (["channel", "cost", "--downlink-mbps", "1e-320", "--json"], "downlink-mbps must lie in [1e-06, 1e+09]"),
    (["channel", "fading", "--distance", "5", "--out", "x.csv", "--seconds", "inf"], "seconds must lie in (0, 1e+07]"),
    (["channel", "fading", "--distance", "5", "--out", "x.csv", "--speed", "1e308"], "speed must lie in [0, 10000]"),
    (["optim", "window", "--alpha", "0.8", "--response-tokens", "1e-320"], "a response has 1 token or more"),
    (["optim", "window", "--alpha", "0.8", "--rtt-ms", "1e308"], "rtt-ms must lie in [0, 1e+09]"),
    (["channel", "cost", "--protocol", "pigeon"], "known: greedy, fh, sh, rejection, split"),
    (["channel", "cost", "--uplink-mbps", "0"], "uplink-mbps must lie in [1e-06, 1e+09]"),
    (["ue", "run", *DRAFTER, "--prompt-ids", "1,2", "--prompt-ids", "3"], "--prompt-ids takes one prompt"),
    (["ue", "run", "--protocol", "greedy,fh", "--temperature", "0.7"], "and for coupled sampling, not for greedy, fh"),
    (["demo", "--methods", "greedy", "--top-k", "3"], "top-k and top-p need a temperature above 0"),
    (["channel", "convert", "x.csv", "--from", "ucc", "--out", "y.csv", "--bin", "2"], "--bin has no effect with"),
    (["channel", "convert", "x.csv", "--from", "canonical", "--out", "y.csv", "--run", "2"], "--run has no effect"),
    (["latency", "fit", "--csv", "x.csv", "--seed", "3"], "--seed has no effect without --leave-out"),
    (["latency", "ramp", "--out", "r", "--loads", "1,2", "--reach", "1.5"], "--reach has no effect with --loads"),
    (["latency", "ramp", "--out", "r", "--link", "congested", "--network-ms", "9"], "--network-ms has no effect with"),
    (["optim", "fit", "--csv", "x.csv", "--repeats", "9"], "--repeats has no effect with --csv"),
    (["optim", "fit", "--csv", "x.csv", "--quick"], "--quick has no effect with --csv"),
    (["sweep", "rates.yaml", "--list"], "--list names all sweeps: leave out rates.yaml"),
    (["channel", "cost", "--queried", "5"], "--queried has no effect with protocol greedy; leave it out"),
    (["channel", "cost", "--hidden-bits", "4"], "--hidden-bits has no effect with protocol greedy"),
    (["channel", "cost", "--protocol", "fh", "--q-top", "8"], "--q-top has no effect with protocol fh"),
    (["channel", "emulate", "--channel", "kind=virtual"], "kind=proxy"),
    (["channel", "emulate", "--listen", "localhost"], "tcp://HOST:PORT"),
    (["channel", "emulate", "--channel", "kind=tc,uplink_mbps=5"], "an interface, or a number of namespaces"),
    (["channel", "emulate", "--trace", "walk", "--dry-run"], "--dry-run, --trace: options of kind=tc"),
    (["channel", "emulate", "--force"], "--force: options of kind=tc, without effect with kind=proxy"),
    (["channel", "emulate", "--channel", "kind=tc", "--json", "--to", "tcp://192.0.2.7:1"], "--json, --to: options of"),
    (["channel", "replay", "nowhere"], "static-2m"),
    (["channel", "validate", "--rates", "fast"], "numbers separated by commas"),
    (["channel", "measure", "--bs", "localhost"], "tcp://HOST:PORT"),
    (["channel", "record", "/no/such/run"], "/no/such/run"),
    (["channel", "convert", "/no/such/file", "--from", "ucc", "--out", "x.csv"], "/no/such/file"),
    (["sweep", "/no/such/file.yaml"], "/no/such/file.yaml"),
    (["demo", "--engine", "abacus"], "known"),
    (["demo", "--drafter", "x.gguf"], "--model"),
    (["report", "/no/such/run"], "not a run directory"),
    (["models", "export", "--model", "/no/such", "--out", "x.gguf"], "/no/such"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"), CASES, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert len(output.err.splitlines()) == 1
    assert said in output.err
    assert list(tmp_path.iterdir()) == []


KEPT = [
    (["models", "export", "--model", ".", "--out", "mine"], "--force overwrites it"),
    (["estimator", "profile", "--engine", "synthetic", "--out", "mine"], "--force overwrites it"),
    (["channel", "measure", "--bs", "tcp://127.0.0.1:1", "--timeout", "0.2", "--out", "mine"], "--force overwrites it"),
    (["optim", "fit", "--quick", "--out", "."], "choose another --out"),
]


@pytest.mark.parametrize(("arguments", "said"), KEPT, ids=lambda value: value[1] if isinstance(value, list) else "")
def test_files_are_not_overwritten(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measurements of minutes were replaced without a word."""
    monkeypatch.chdir(tmp_path)
    names = ("mine", "fit.json")
    for name in names:
        Path(name).write_text("precious")
    assert main(arguments) == 2
    assert f"is there already; {said}" in capsys.readouterr().err
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(names, "precious")


def test_the_same_from_a_shell() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "testbed", "ue", "run", "--window", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("testbed: ") and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", [[], ["bs"], ["ue"], ["models"]])
def test_a_group_alone_shows_its_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 2
    assert "Usage" in capsys.readouterr().out


LONG = "a" * 300


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo", "--methods", "greedy", "--out", LONG], f"cannot use {LONG}"),
        (["ue", "run", "--out", LONG], f"cannot use {LONG}"),
        (["demo", "--out", "\udcff\udcfe"], r"'\udcff\udcfe' is not UTF-8"),
        (["report", "runs/\udcff"], "is not UTF-8"),
    ],
)
def test_names_that_no_file_can_have(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A traceback, for the second kind after the run."""
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == "" and said in output.err and len(output.err.splitlines()) == 1


def shell(line: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'"{sys.executable}" -m testbed {line}']
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=os.environ | more)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(closed: str) -> None:
    done = shell(f"report /no/such/run {closed}")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert ("not a run directory" in done.stderr) == ("2>" not in closed)
    assert shell(f"channel cost {closed}").returncode == 0


def test_too_few_files_are_one_line() -> None:
    """Sockets ended in a traceback, or in libzmq's abort."""
    limit = (16, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    command = [sys.executable, "-m", "testbed", "bs", "serve", "--engine", "synthetic", "--bind", "tcp://127.0.0.1:*"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "testbed: this process may open 16 files only, and needs 128: ulimit -n 128\n"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), "testbed: out of memory\n"),
        (ImportError("libx.so: cannot map segment", name="scipy"), "testbed: scipy cannot be loaded: libx.so: cannot"),
    ],
)
def test_a_lack_of_memory_is_not_taken_for_a_missing_extra(
    error: Exception, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("testbed.experiments.doctor.checks.examine", fail)
    assert main(["doctor"]) == 1
    assert capsys.readouterr().err.startswith(says)


FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


@FULL
@pytest.mark.parametrize("words", ["channel cost --json", "sweep --list", "models path"])
def test_a_full_disk_is_one_line(words: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "testbed", *words.split()], stdout=full, stderr=subprocess.PIPE, text=True,
            timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 1 and done.stderr.endswith("testbed: cannot use the output: No space left on device\n")
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_where_nothing_can_be_written_nothing_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    out = str(tmp_path / "file" / "out")
    for words in (["bench", "--requests", "2"], ["demo", "--prompts", "1"]):
        assert main([*words, "--out", out]) == 2
        said = capsys.readouterr().err
        assert said.startswith("testbed: ") and out in said and said.count("\n") == 1
