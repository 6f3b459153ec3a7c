"""`testbed latency` and `testbed optim window`: documents, tables, files, and refusals in one line."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from testbed.cli.latency import group as latency
from testbed.cli.latency.predict import _read_json
from testbed.cli.optim import window
from testbed.errors import BadInput
from testbed.experiments.results.latency import read_points
from tests.support.refusals import refuse

SIX = ("c1_p", "c1_v", "c1_d", "c2_p", "c2_v", "c2_d")
TRUTH = (0.30, 0.020, 0.002, 0.010, 0.0004, 0.00008)
LOADS = np.linspace(0.5, 13.0, 9)

optim = typer.Typer()
optim.command("window")(window.window)
optim.command("other")(lambda: None)


def call(app: typer.Typer, line: str) -> Result:
    result = CliRunner().invoke(app, shlex.split(line))
    if result.exit_code and not isinstance(result.exception, BadInput):
        raise AssertionError(f"{line}: {result.output}") from result.exception
    return result


def answer(line: str, app: typer.Typer = latency.app) -> Any:
    """The one document on stdout."""
    result = call(app, f"{line} --json")
    assert result.exit_code == 0, result.exception
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def refusal(line: str, app: typer.Typer = latency.app) -> str:
    result = call(app, line)
    assert isinstance(result.exception, BadInput) and result.stdout == ""
    assert "\n" not in str(result.exception)
    return str(result.exception)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_dense(path: Path, noise: float = 0.0, repeats: int = 1) -> None:
    random = np.random.default_rng(0)
    rows = [
        f"{x},{1.2 / (1 - 0.07 * x) * np.exp(noise * random.standard_normal())},{repeat}"
        for repeat in range(repeats)
        for x in LOADS
    ]
    path.write_text("\n".join(["rps,latency_s,repeat", *rows]) + "\n")


def write_speculation(path: Path, lengths: tuple[int, ...] = (512,), noise: float = 0.0) -> None:
    """Rows by eqs. 1 and 3; coefficients of prefill grow with it."""
    random, lines = np.random.default_rng(0), ["alpha,k,prefill,decode,rps,latency_s,note"]
    for prefill in lengths:
        for alpha in (0.5, 0.8, 1.0):
            for k in (0, 2, 6):
                cycles = 256 / sum(alpha**j for j in range(k + 1))
                c1 = 0.30 * prefill / 512 + cycles * (0.020 + k * 0.002)
                c2 = 0.010 * prefill / 512 + cycles * (0.0004 + k * 0.00008)
                lines += [
                    f"{alpha},{k},{prefill},256,{x / c2},{c1 / (1 - x) * np.exp(noise * random.standard_normal())},-"
                    for x in (0.1, 0.4, 0.6, 0.8)
                ]
    path.write_text("\n".join(lines) + "\n")


# ---------------------------------------------------------------- fit


def test_fit_answers_c1_c2_and_r2(here: Path) -> None:
    write_dense(here / "dense.csv", 0.02, repeats=3)
    found = answer("fit --csv dense.csv")
    assert found["c1"] == pytest.approx(1.2, rel=0.05) and found["c2"] == pytest.approx(0.07, rel=0.05)
    assert 0.99 < found["r2"] < 1
    assert found["intervals"]["c1"][0] < found["c1"] < found["intervals"]["c1"][1]
    assert (found["form"], found["points"], len(found["repeats"])) == ("load", 27, 3)
    write_dense(here / "single.csv", 0.02)
    assert answer("fit --csv single.csv")["intervals"] is None


def test_loads_at_which_requests_piled_up_are_left_out(here: Path) -> None:
    """They have no mean latency; `fit` and `ratios` took them in silence."""
    write_dense(here / "dense.csv", 0.02, repeats=3)
    header, *rows = (here / "dense.csv").read_text().splitlines()
    wrong = [",".join([*row.split(",")[:-1], "99", "1"]) for row in rows]
    marked = [f"{header},saturated", *(f"{row},0" for row in rows), *wrong]
    (here / "all.csv").write_text("\n".join(marked))
    assert answer("fit --csv all.csv") == answer("fit --csv dense.csv")
    assert "left out 27 loads at which requests piled up" in call(latency.app, "fit --csv all.csv").stderr
    (here / "none.csv").write_text("\n".join([f"{header},saturated", *wrong]))
    assert "none.csv has no load below saturation" in refusal("fit --csv none.csv")
    (here / "bad.csv").write_text("\n".join([f"{header},saturated", *(f"{row},nan" for row in rows)]))
    assert "saturated must be 0 or 1" in refusal("fit --csv bad.csv")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("measure --virtual --max-tokens 9", "--max-tokens has no effect in virtual time"),
        ("measure --virtual --dataset no.jsonl", "--dataset has no effect in virtual time"),
        ("measure --virtual --pace no.json", "--pace has no effect in virtual time"),
        ("measure --network-ms 3", "--network-ms has no effect with a real base station"),
        ("ramp --max-tokens 7", "--max-tokens has no effect in virtual time"),
        ("ramp --real --learn-from 3", "--learn-from has no effect with a real base station"),
        ("ramp --real --mixed 0.5", "--mixed has no effect with a real base station"),
    ],
)
def test_options_without_effect_are_refused(line: str, said: str, here: Path) -> None:
    assert said in refusal(f"{line} --out out") and not (here / "out").exists()


def test_fit_takes_the_six_where_their_columns_are(here: Path) -> None:
    write_speculation(here / "sd.csv")
    found = answer("fit --csv sd.csv")
    assert [found[name] for name in SIX] == pytest.approx(TRUTH, rel=1e-4)
    assert found["r2"] > 0.9999
    pooled = answer("fit --csv sd.csv --form load")
    assert pooled["r2"] < 0.9 and "c1_p" not in pooled


def test_fit_of_some_windows(here: Path) -> None:
    """Without speculation a server may be another one: what the others' rows say must not depend on it."""
    write_speculation(here / "sd.csv")
    header, *rows = [line.split(",") for line in (here / "sd.csv").read_text().splitlines()]
    for row in rows:
        row[5] = str((2 if row[1] == "0" else 1) * float(row[5]))
    (here / "dense.csv").write_text("\n".join(map(",".join, [header, *rows])))
    found = answer("fit --csv dense.csv --windows 2,6")
    assert [found[name] for name in SIX] == pytest.approx(TRUTH, rel=1e-4) and found["points"] == 24
    assert answer("fit --csv dense.csv")["r2"] < 0.98
    dense = answer("fit --csv dense.csv --windows 0")
    assert dense["form"] == "load" and dense["points"] == 12
    assert dense["c1"] == pytest.approx(2 * (0.30 + 256 * 0.020), rel=1e-4)
    assert dense["c2"] == pytest.approx(0.010 + 256 * 0.0004, rel=1e-4)


def test_fit_takes_the_moe_form(here: Path) -> None:
    loads = np.linspace(0.1, 12, 16)
    lines = ["rps,latency_s"]
    for rps in loads:
        seconds = 0.5
        for _ in range(3000):
            phi = 1 - (1 - 8 / 128) ** (rps * seconds)
            seconds = (0.5 + 0.4 * phi) / (1 - rps * (0.02 + 0.03 * phi))
        lines.append(f"{rps},{seconds}")
    (here / "moe.csv").write_text("\n".join(lines))
    found = answer("fit --csv moe.csv --experts 8,128")
    names = ("c1_u", "c1_s", "c2_u", "c2_s")
    assert [found[name] for name in names] == pytest.approx((0.5, 0.4, 0.02, 0.03), rel=1e-3)
    (here / "fit.json").write_text(json.dumps(found))
    rows = answer("predict --fit fit.json --rps 0.1,12")["rows"]
    assert [row["latency_s"] for row in rows] == pytest.approx([float(line.split(",")[1]) for line in lines[1::15]])


def test_fit_of_another_column(here: Path) -> None:
    (here / "tail.csv").write_text(
        "rps,latency_s,latency_p95_s\n" + "".join(f"{x},1,{2 / (1 - x / 20)}\n" for x in LOADS)
    )
    found = answer("fit --csv tail.csv --column latency_p95_s")
    assert (found["c1"], found["c2"]) == pytest.approx((2, 0.05))


def test_fit_by_length_gives_lines_and_what_they_predict(here: Path) -> None:
    write_speculation(here / "lengths.csv", (256, 512, 768, 1024))
    found = answer("fit --csv lengths.csv --by-length --leave-out 1,2")
    assert [pair["prefill"] for pair in found["pairs"]] == [256, 512, 768, 1024]
    assert found["laws"]["c1_p"]["slope"] == pytest.approx(0.3 / 512, rel=1e-3)
    assert [(each["left_out"], each["folds"]) for each in found["left_out"]] == [(1, 4), (2, 6)]
    assert all(each["latency_r2"] > 0.999 and each["r2"]["c2_p"] > 0.999 for each in found["left_out"])
    shown = call(latency.app, "fit --csv lengths.csv --by-length --leave-out 1").stdout
    assert "prefill + 0.5*decode" in shown and "left out" in shown


def test_a_byte_order_mark_crlf_and_empty_lines_change_nothing(here: Path) -> None:
    write_dense(here / "dense.csv", 0.02)
    text = (here / "dense.csv").read_text()
    (here / "windows.csv").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n\r\n").encode())
    assert answer("fit --csv windows.csv") == answer("fit --csv dense.csv")


def test_fit_writes_a_file_that_predict_reads_and_plots(here: Path) -> None:
    write_dense(here / "dense.csv", 0.02, repeats=3)
    result = call(latency.app, "fit --csv dense.csv --out fit.json --plots plots")
    assert result.exit_code == 0 and "R²" in result.stdout and "c2" in result.stdout
    assert sorted(path.name for path in (here / "plots").iterdir()) == ["collapse.png", "latency.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (here / "plots").iterdir())
    found = answer("predict --fit fit.json --rps 2,8,12")
    for row, truth in zip(found["rows"], (1.2 / 0.86, 1.2 / 0.44, 1.2 / 0.16), strict=True):
        assert row["low_s"] < row["latency_s"] < row["high_s"]
        assert row["latency_s"] == pytest.approx(truth, rel=0.1)
    assert found["saturation_rps"] == pytest.approx(1 / 0.07, rel=0.05)


def test_plots_of_the_other_forms(here: Path) -> None:
    write_speculation(here / "sd.csv", noise=0.01)
    assert call(latency.app, "fit --csv sd.csv --plots sd").exit_code == 0
    assert sorted(path.name for path in (here / "sd").iterdir()) == ["collapse.png", "latency.png"]
    write_dense(here / "dense.csv", 0.02)
    assert call(latency.app, "fit --csv dense.csv --experts 2,8 --plots moe").exit_code == 0
    assert [path.name for path in (here / "moe").iterdir()] == ["latency.png"]


# ---------------------------------------------------------------- speedup and predict


@pytest.mark.parametrize(
    ("sd", "star", "wins"),
    [("0.78,0.085", 8.9, "below"), ("0.92,0.072", 12.7, "below"), ("0.7,0.06", None, "always"),
     ("1.3,0.08", None, "never"), ("1.3,0.06", 5.3, "above")],
)  # fmt: skip
def test_speedup_answers_the_contract(sd: str, star: float | None, wins: str) -> None:
    found = answer(f"speedup --dense 1.20,0.07 --sd {sd}")
    assert set(found) == {"zero_load", "c1_ratio", "c2_ratio", "break_even_rps", "wins"}
    assert found["wins"] == wins and found["zero_load"] == pytest.approx(1.2 / float(sd.split(",")[0]))
    assert (found["break_even_rps"] and round(found["break_even_rps"], 1)) == star


def test_speedup_at_loads_and_for_people() -> None:
    rows = answer("speedup --dense 1.20,0.07 --sd 0.78,0.085 --rps 0,8")["rows"]
    assert [round(row["speedup"], 2) for row in rows] == [1.54, 1.12]
    shown = call(latency.app, "speedup --dense 1.20,0.07 --sd 0.78,0.085 --rps 8").stdout
    assert "below 8.861 requests/s" in shown and "shrinks" in shown and "1.1189" in shown


def test_predict_from_coefficients() -> None:
    found = answer("predict --coefficients 1.20,0.07 --rps 10,12")
    assert [row["latency_s"] for row in found["rows"]] == pytest.approx([4.0, 7.5])
    assert all(row["low_s"] is None for row in found["rows"])
    six = ",".join(map(str, TRUTH))
    found = answer(f"predict --coefficients {six} --alpha 1 --k 3 --decode 256 --rps 0")
    assert found["rows"][0]["latency_s"] == pytest.approx(0.30 + 64 * 0.026)
    assert found["saturation_rps"] == pytest.approx(1 / (0.010 + 64 * 0.00064))
    assert "Saturates at 14.286" in call(latency.app, "predict --coefficients 1.20,0.07 --rps 1").stdout


# ---------------------------------------------------------------- window


def test_window_answers_the_best_by_its_own_table() -> None:
    found = answer("window --alpha 0.8 --rtt-ms 50 --max-window 12", optim)
    times = [row["token_s"] for row in found["rows"]]
    assert [row["window"] for row in found["rows"]] == list(range(13))
    assert found["window"] == int(np.argmin(times)) and found["token_s"] == min(times)
    assert found["rows"][3]["tokens_per_round"] == pytest.approx(1 + 0.8 + 0.64 + 0.512)
    assert "best" in call(optim, "window --alpha 0.8").stdout


def test_window_under_load_and_beyond() -> None:
    found = answer("window --alpha 0.75 --verify-token-ms 2 --load 350 --rtt-ms 5 --draft-ms 1 --max-window 8", optim)
    assert found["window"] == 0 and found["rows"][8]["token_s"] is None and found["rows"][8]["busy"] > 1
    short = answer("window --alpha 0.75 --response-tokens 8", optim)["rows"]
    long = answer("window --alpha 0.75", optim)["rows"]
    assert all(a["token_s"] > b["token_s"] for a, b in zip(short[1:], long[1:], strict=True))
    hopeless = answer("window --alpha 0.75 --verify-token-ms 2 --load 5000", optim)
    assert hopeless["window"] == 0 and hopeless["token_s"] is None


# ---------------------------------------------------------------- bad input

GOOD = "rps,latency_s\n1,1.2\n2,1.3\n3,1.5\n"
BAD_FILES = [
    ("", "empty"),
    ("rps,latency_s\n", "no rows"),
    ("load,latency_s\n1,2\n", "no column rps"),
    ("rps;latency_s\n1;2\n", "no column rps"),
    ("rps,p95\n1,2\n", "no column latency_s"),
    ("rps,latency_s,rps\n1,2,3\n", "more than once"),
    ("rps,latency_s,alpha\n1,2,0.5\n", "no k, decode"),
    ("rps,latency_s\n1,1.2\n2\n", "line 3 has 1 cells"),
    ("rps,latency_s\n1,1.2\n2,1.3,9\n", "line 3 has 3 cells"),
    ("rps,latency_s\n1,1.2\n\n2,fast\n", "line 4: latency_s must be a number, not 'fast'"),
    ("rps,latency_s\n1,1.2\n2,\n", "line 3: latency_s must be a number, not ''"),
    ("rps,latency_s\n-1,1.2\n", "line 2: rps must be 0 or more"),
    ("rps,latency_s\n1,0\n", "line 2: latency_s must be positive"),
    ("rps,latency_s\n1,nan\n", "line 2: latency_s"),
    ("rps,latency_s\ninf,1\n", "line 2: rps"),
    ("rps,latency_s,alpha,k,prefill,decode\n1,1,1.5,1,1,1\n", "alpha must be in [0, 1]"),
    ("rps,latency_s,alpha,k,prefill,decode\n1,1,0.5,1.5,1,1\n", "k must be a whole number"),
    ("rps,latency_s,alpha,k,prefill,decode\n1,1,0.5,1,1,0\n", "decode must be positive"),
    ('rps,latency_s\n1,"1.2\n', "not CSV"),
    ("rps,latency_s\n1,1.2\n2,1.3\n", "3 points"),
    ("rps,latency_s\n1,1.2\n1,1.3\n1,1.4\n", "two loads"),
    ("rps,latency_s,k\n1,1,0\n2,1,1\n3,1,2\n", "alpha and decode"),
]


@pytest.mark.parametrize(("text", "said"), BAD_FILES)
def test_files_that_cannot_be_fitted_are_refused_with_the_line(text: str, said: str, here: Path) -> None:
    (here / "x.csv").write_text(text)
    assert said in refusal("fit --csv x.csv")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("fit --csv no.csv", "cannot read no.csv"),
        ("fit --csv .", "cannot read"),
        ("fit --csv good.csv --experts 8", "m,M"),
        ("fit --csv good.csv --experts 9,8", "m,M"),
        ("fit --csv good.csv --experts a,b", "whole numbers"),
        ("ratios --csv good.csv", "alpha, k, prefill, decode and repeat"),
        ("fit --csv good.csv --leave-out 1", "--by-length"),
        ("fit --csv good.csv --windows 3", "no row with k of 3"),
        ("fit --csv good.csv --windows x", "whole numbers"),
        ("fit --csv good.csv --by-length", "alpha, k, prefill and decode"),
        ("fit --csv good.csv --by-length --out x.json", "leave out"),
        ("fit --csv good.csv --out no/such/dir.json", "cannot write"),
        ("fit --csv good.csv --form speculation", "alpha, k, decode"),
        ("speedup --dense 1.2 --sd 1,2", "--dense takes C1,C2"),
        ("speedup --dense 1.2,x --sd 1,2", "numbers"),
        ("speedup --dense 1.2,0 --sd 1,2", "C2 of the dense"),
        ("speedup --dense 1.2,0.07 --sd -1,2", "C1 of the speculative"),
        ("speedup --dense 1.2,0.07 --sd 0.78,0.085 --rps 12", "saturation"),
        ("predict --rps 1", "--coefficients or --fit"),
        ("predict --rps 1 --coefficients 1,2 --fit x", "--coefficients or --fit"),
        ("predict --rps 1 --coefficients 1,2,3", "3 numbers"),
        ("predict --rps 14.3 --coefficients 1.2,0.07", "14.3 requests/s is at or beyond saturation"),
        ("predict --rps 1,20 --coefficients 1.2,0.07", "20 requests/s"),
        ("predict --rps -1 --coefficients 1.2,0.07", "rps"),
        ("predict --rps 1 --coefficients 1.2,0.07 --k 3", "C1 and C2 alone"),
        ("predict --rps 1 --coefficients 1,1,1,1,1,1", "alpha, k, decode"),
        ("predict --rps 1 --coefficients 1,1,1,1,1,1 --alpha 2 --k 1 --decode 9", "alpha"),
        ("predict --rps 1 --fit no.json", "cannot read a fit"),
        ("predict --rps 1 --fit good.csv", "cannot read a fit"),
        ("predict --rps 1 --fit list.json", "no fit"),
    ],
)
def test_command_lines_that_cannot_be_answered_are_refused(line: str, said: str, here: Path) -> None:
    (here / "good.csv").write_text(GOOD)
    (here / "list.json").write_text("[1, 2]")
    assert said in refusal(line)
    assert sorted(path.name for path in here.iterdir()) == ["good.csv", "list.json"]


@pytest.mark.parametrize(
    ("options", "said"),
    [("--alpha 1.2", "alpha"), ("--alpha 0.5 --max-window 0", "1..256"), ("--alpha 0.5 --uplink-mbps 0", "uplink-mbps"),
     ("--alpha 0.5 --per-up 1", "[0, 1)"), ("--alpha 0.5 --load -1", "load"), ("--alpha 0.5 --rtt-ms nan", "rtt-ms"),
     ("--alpha 0.5 --draft-ms -1", "draft-ms"), ("--alpha nan", "alpha")],
)  # fmt: skip
def test_windows_that_cannot_be_priced_are_refused(options: str, said: str) -> None:
    assert said in refusal(f"window {options}", optim)


@pytest.mark.parametrize("number", ["1_0", "\uff11\uff10", "0x10"])
def test_numbers_as_python_alone_writes_them_are_refused(number: str, tmp_path: Path) -> None:
    """1_000 was read as 1000."""
    path = tmp_path / "points.csv"
    path.write_text(f"rps,latency_s\n{number},0.5\n20,0.7\n")
    refuse(lambda: read_points(path), BadInput, "line 2", "rps must be a number", number)


def test_a_fit_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    path.write_text('{"form": "load", "c1": 0.1, "c2": 0.02, "c2": 0.03}')
    refuse(lambda: _read_json(path), BadInput, "fit.json", "'c2' is there twice")


@pytest.mark.parametrize("command", ["fit", "speedup", "predict"])
def test_help_has_an_example(command: str) -> None:
    assert f"testbed latency {command}" in call(latency.app, f"{command} --help").stdout


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=80) | st.binary(max_size=80))
def test_any_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, junk: str | bytes) -> None:
    path = tmp_path_factory.mktemp("junk") / "x.csv"
    path.write_bytes(b"rps,latency_s\n" + (junk if isinstance(junk, bytes) else junk.encode("utf-8", "replace")))
    try:
        points, latencies = read_points(path)
    except BadInput:
        refuse(lambda: read_points(path), BadInput)
        return
    assert points.rps.shape == latencies.shape and np.all(latencies > 0)
