"""Sweep files: grids, zipped lists, exclusions, inclusions and repeats, against sets computed here."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.assets import bundled_files
from testbed.assets.bundled_files import find
from testbed.channel.spec import parse_channel
from testbed.cli.main import main
from testbed.cli.runs.sweep import time_left
from testbed.config import DemoConfig
from testbed.errors import BadInput, ConfigError
from testbed.experiments.sweep.files import find_sweep, sweep_files
from testbed.experiments.sweep.grid import Executor
from testbed.experiments.sweep.points import SweepConfig, SweepPoint, load_sweep, points, with_settings
from tests.support.refusals import refuse

RUN = DemoConfig(
    channel="kind=virtual,profile=wisv,rtt_ms=50", methods=("greedy",), prompts=2, engine="transformers", seed=5
)


def found(**more: Any) -> list[dict[str, Any]]:
    return [point.values for point in points(msgspec.convert({"run": msgspec.to_builtins(RUN), **more}, SweepConfig))]


def test_zipped_lists_go_together_and_are_combined_with_the_grid() -> None:
    values = found(grid={"window": [4, 8]}, zip={"rate_mbps": [20, 500], "rtt_ms": [50, 5]})
    assert [(v["window"], v["rate_mbps"], v["rtt_ms"]) for v in values] == [
        (4, 20, 50), (4, 500, 5), (8, 20, 50), (8, 500, 5),
    ]  # fmt: skip


def test_a_series_takes_its_own_value_before_a_zipped_one() -> None:
    values = found(series=[{"name": "a"}, {"name": "b", "rtt_ms": 1}], zip={"rate_mbps": [20, 500], "rtt_ms": [50, 5]})
    assert [(v["name"], v["rate_mbps"], v["rtt_ms"]) for v in values] == [
        ("a", 20, 50), ("a", 500, 5), ("b", 20, 1), ("b", 500, 1),
    ]  # fmt: skip


COLUMN = st.lists(st.integers(1, 40), min_size=1, max_size=4, unique=True)


@settings(max_examples=25)
@given(windows=COLUMN, rates=COLUMN, data=st.data())
def test_exclusions_take_away_and_inclusions_add(windows: list[int], rates: list[int], data: Any) -> None:
    every = set(itertools.product(windows, rates))
    out = data.draw(st.lists(st.sampled_from(sorted(every)), unique=True, max_size=len(every) - 1))
    window, more = data.draw(st.sampled_from(windows)), data.draw(st.integers(41, 60))
    exclude = [{"window": w, "rate_mbps": r} for w, r in out]
    include = [{"window": more, "rate_mbps": 7}]
    values = found(grid={"window": windows, "rate_mbps": rates}, exclude=exclude, include=include)
    assert {(v["window"], v["rate_mbps"]) for v in values} == (every - set(out)) | {(more, 7)}
    left = found(grid={"window": windows, "rate_mbps": rates}, exclude=[{"window": [window]}], include=include)
    assert {(v["window"], v["rate_mbps"]) for v in left} == {c for c in every if c[0] != window} | {(more, 7)}


def test_repeats_are_points_of_their_own_with_counted_seeds() -> None:
    config = SweepConfig(run=RUN, grid={"window": [4, 8]}, repeats=3)
    made = points(config)
    assert [(p.config.window, p.config.seed, p.channel.seed) for p in made] == [
        (w, s, s) for w in (4, 8) for s in (5, 6, 7)
    ]  # fmt: skip
    assert len({p.key for p in made}) == 6


@pytest.mark.parametrize(
    "key", ["dataset", "dtype", "temperature", "top_k", "top_p", "sampling", "tie_tolerance", "max_tokens"]
)
def test_every_field_of_a_run_may_vary(key: str) -> None:
    named = {"dataset": "bundled:calibration", "dtype": "bfloat16", "max_tokens": 9, "top_k": 3, "sampling": "coupled"}
    value = named.get(key, 0.5)
    made = points(SweepConfig(run=RUN, grid={key: [value]}))
    assert getattr(made[0].config, key) == value


@pytest.mark.parametrize(
    "values",
    [{"rate_mbps": 20, "uplink_mbps": 1}, {"rate_mbps": 20, "downlink_mbps": 1}, {"level": 4, "threshold": 0.5},
     {"protocol": "fh", "methods": ["greedy"]}],
)  # fmt: skip
def test_a_key_that_sets_another_is_not_given_beside_it(values: dict[str, Any]) -> None:
    """One of them had no effect, and rows stated it nevertheless."""
    first, second = values
    for config in (
        SweepConfig(run=RUN, include=[values]),
        SweepConfig(run=RUN, grid={first: [values[first]], second: [values[second]]}),
        SweepConfig(run=RUN, grid={first: [values[first]]}, series=[{"name": "x", second: values[second]}]),
    ):
        if config.series and first != "rate_mbps":
            assert len(points(config)) == 1  # the series' key stands for the grid's
        else:
            with pytest.raises(BadInput, match=f"{first} sets {second}: give only one"):
                points(config)


def test_a_point_may_have_a_link_of_another_kind() -> None:
    made = points(SweepConfig(run=RUN, grid={"channel": ["kind=none", RUN.channel]}))
    assert [p.channel.is_virtual for p in made] == [False, True]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"zip": {"window": [4, 8], "rtt_ms": [1]}}, ["equal lengths", "window 2, rtt_ms 1"]),
        ({"zip": {"widow": [4]}}, ["did you mean 'window'?"]),
        ({"grid": {"window": [4]}, "zip": {"window": [8]}}, ["'window' is in both grid and zip"]),
        ({"grid": {"level": [4]}, "zip": {"threshold": [0.5]}}, ["'threshold' is in both grid and zip"]),
        ({"exclude": [{"window": 5}]}, ["exclude window=5: no point matches"]),
        ({"exclude": [{"rtt": 5}]}, ["did you mean 'rtt_ms'?"]),
        ({"grid": {"window": [4]}, "exclude": [{"window": 4}]}, ["leaves no point"]),
        ({"include": [{"window": 1000}]}, ["point window=1000: window must lie in 1..256"]),
        ({"repeats": 0}, ["at least 1, not 0"]),
        ({"repeats": 2, "grid": {"seed": [1]}}, ["omit either the key 'seed'"]),
    ],
)
def test_what_does_not_hold_together_is_refused(more: dict[str, Any], words: list[str]) -> None:
    refuse(lambda: found(**more), BadInput, *words)


@pytest.mark.parametrize(
    ("text", "near"),
    [("gird: {window: [8]}", "grid"), ("run: {prompt: 3}", "prompts"), ("repeat: 2", "repeats")],
)
def test_an_unknown_key_of_the_file_names_the_nearest(text: str, near: str, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    refuse(lambda: load_sweep(path), ConfigError, f"did you mean {near!r}?")


# ---------------------------------------------------------------- executors


@pytest.mark.parametrize(
    ("executor", "channel", "words"),
    [
        (Executor("slurm"), RUN.channel, "known: local, ray"),
        (Executor("local", 0), RUN.channel, "at least 1, not 0"),
        (Executor("local", 2), "kind=none", "1 of 1 points run in real time"),
        (Executor("ray"), "kind=none", "1 of 1 points run in real time"),
    ],
)
def test_executors_that_cannot_be(executor: Executor, channel: str, words: str) -> None:
    todo = points(SweepConfig(run=msgspec.structs.replace(RUN, channel=channel)))
    refuse(lambda: executor.check(todo), BadInput, words)


def test_the_time_left_is_that_of_the_points_that_ran() -> None:
    assert time_left(0, 5, 9.0) == ""
    assert time_left(2, 3, 60.0) == "0:01:30 left"
    assert time_left(1, 100, 60.0) == "1:40:00 left"
    assert time_left(5, 0, 60.0) == ""


# ---------------------------------------------------------------- files that come along


def test_every_sweep_that_comes_along_says_what_it_is_for() -> None:
    files = {one.name: one for one in sweep_files()}
    there = {p.relative_to("sweeps").with_suffix("").as_posix() for p in Path("sweeps").rglob("*.yaml")}
    assert set(files) == there
    assert {"wisv-table1", "wisv-fig3", "wisv-fig4", "wisv-fig5", "capacity/table2"} <= set(files)
    assert all(len(one.about) > 30 and not one.about.startswith("#") for one in files.values())
    assert files["wisv-table1"].command == "testbed sweep wisv-table1"
    for name, command in {
        "capacity/mix": "testbed capacity --config", "capacity/real": "testbed capacity --real --config",
        "edge/fig6": "testbed optim figures", "latency/ramp-near": "testbed latency ramp --config",
    }.items():  # fmt: skip
        assert files[name].command.startswith(f"{command} {files[name].path} ")
    assert all(str(one.path) in one.command for one in files.values() if "/" in one.name)
    assert not any("testbed " in one.about for one in files.values())


def test_a_sweep_is_found_by_name_or_as_a_file(tmp_path: Path) -> None:
    assert find_sweep(Path("windows")) == bundled_files.folder("sweeps") / "windows.yaml"
    own = tmp_path / "own.yaml"
    own.write_text("{}")
    assert find_sweep(own) == own
    refuse(lambda: find_sweep(Path("capacity/mix")), BadInput, "testbed capacity --config")
    refuse(lambda: find_sweep(Path("edge/fig6")), BadInput, "testbed optim figures")
    refuse(lambda: find_sweep(Path("widows")), BadInput, "neither a file nor one of", "windows")


def test_the_list_and_the_plan_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--list"]) == 0
    assert "wisv-table1" in capsys.readouterr().out
    path = tmp_path / "s.yaml"
    path.write_bytes(msgspec.yaml.encode(SweepConfig(run=RUN, grid={"window": [4, 8]})))
    whole = tmp_path / "out" / "points" / points(load_sweep(path))[0].key
    whole.mkdir(parents=True)
    (whole / "summary.json").touch()
    assert main(["sweep", str(path), "--dry-run", "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1:] for line in lines[:2]] == [["done", "window=4"], ["to", "do", "window=8"]]
    assert "2 points, 1 to run (1 in virtual time, 0 in real time), 2 requests" in lines[2]
    assert main(["sweep"]) == 2
    assert "testbed sweep --list" in capsys.readouterr().err


def test_settings_on_the_command_line_replace_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text("run: {channel: 'kind=virtual,profile=wisv', prompts: 50}\ngrid: {window: [4, 8]}\n")
    found = with_settings(load_sweep(path), ["prompts=5", "grid.window=[16]", "repeats=2"])
    assert (found.run.prompts, found.grid, found.repeats) == (5, {"window": [16]}, 2)
    with pytest.raises(BadInput, match="unknown field 'promts'; did you mean 'prompts'"):
        with_settings(load_sweep(path), ["promts=5"])
    for wrong in ("prompts", "nothing=1", "prompts=many"):
        with pytest.raises(BadInput):
            with_settings(load_sweep(path), [wrong])


PLAIN = ("file", "profile", "shares", "dataset", "model", "drafter")


@pytest.mark.parametrize(
    ("field", "name"),
    [*((field, "input") for field in (*PLAIN, "hybrid", "scorer")), *((field, "an+input") for field in PLAIN)],
)
def test_a_point_is_another_one_once_a_file_that_it_names_has_changed(field: str, name: str, tmp_path: Path) -> None:
    """A resumed sweep would mix results of both."""
    path = tmp_path / f"{name}.{'py' if field == 'scorer' else 'yaml'}"
    shutil.copy(find("profiles", "wisv"), path)
    channel, run = {"kind": "virtual", "profile": "wisv"}, dict[str, Any]()
    if field in ("file", "profile", "shares"):
        channel |= {field: str(path)} | ({"kind": "trace", "via": "virtual"} if field == "file" else {})
    else:
        run[field] = {"scorer": f"{path}:answer"}.get(field, str(path))
        run = {"drafter": f"suffix+{path}"} if field == "hybrid" else run
    spec = parse_channel(",".join(f"{key}={value}" for key, value in channel.items()))
    point = SweepPoint({}, DemoConfig(**run), spec)
    before = point.key
    assert point.key == before != SweepPoint({}, DemoConfig(), parse_channel("kind=virtual,profile=wisv")).key
    path.write_text(path.read_text() + "# changed")
    assert point.key != before
