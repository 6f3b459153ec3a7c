"""Sweeps: points, validation and resuming, with the bundled pair in virtual time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from testbed.assets.fingerprints import model_fingerprint
from testbed.config import save
from testbed.errors import BadInput, ConfigError
from testbed.experiments.sweep import run as sweep_run
from testbed.experiments.sweep.grid import SweepConfig, load_sweep, points, run_sweep
from testbed.models.bundle import bundled
from tests.support.heads import head_files
from tests.support.refusals import refuse

RUN = "{channel: 'kind=virtual,profile=wisv,rtt_ms=50', methods: [greedy, fh], prompts: 3, engine: transformers}"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    return path


def test_every_combination_is_a_point_in_the_grids_order(tmp_path: Path) -> None:
    config = load_sweep(written(tmp_path, f"run: {RUN}\ngrid: {{window: [4, 8], rate_mbps: [20, 500]}}"))
    found = points(config)
    assert [p.values for p in found] == [
        {"window": w, "rate_mbps": r} for w in (4, 8) for r in (20, 500)
    ]  # fmt: skip
    assert [(p.config.window, p.channel.uplink_mbps, p.channel.downlink_mbps, p.channel.rtt_ms) for p in found] == [
        (4, 20.0, 20.0, 50.0), (4, 500.0, 500.0, 50.0), (8, 20.0, 20.0, 50.0), (8, 500.0, 500.0, 50.0),
    ]  # fmt: skip
    assert len({p.key for p in found}) == 4
    assert points(load_sweep(written(tmp_path, f"run: {RUN}")))[0].values == {}


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ("{colour: [red]}", "unknown grid key 'colour'; known: window, "),
        ("{windwo: [8]}", "unknown grid key 'windwo'; did you mean 'window'?"),
        ("{window: []}", "no values"),
        ("{window: [8, 1000]}", "point window=1000: window must lie in 1..256"),
        ("{window: [x]}", "point window=x"),
        ("{rtt_ms: [-1]}", "point rtt_ms=-1"),
        ("{profile: [abacus]}", "no profile 'abacus'"),
        ("{payload: [gold]}", "known: own, rejection"),
    ],
)
def test_grids_that_cannot_run_are_refused_before_anything_runs(grid: str, words: str, tmp_path: Path) -> None:
    config = load_sweep(written(tmp_path, f"run: {RUN}\ngrid: {grid}"))
    refuse(lambda: run_sweep(config, tmp_path / "out", lambda *_: None), BadInput, words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["grid: [1]", "colour: red", "run: {prompts: many}", "\t"])
def test_files_that_are_no_sweep(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sweep\.yaml"):
        load_sweep(written(tmp_path, text))


@pytest.mark.parametrize("channel", ["kind=virtual", "kind=proxy"])
def test_a_payload_needs_a_profile_with_sizes(channel: str, tmp_path: Path) -> None:
    text = f"run: {{channel: '{channel}', methods: [greedy]}}\ngrid: {{payload: [rejection]}}"
    with pytest.raises(BadInput, match="profile"):
        points(load_sweep(written(tmp_path, text)))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepConfig, Path]:
    """A sweep of two points."""
    folder = tmp_path_factory.mktemp("finished")
    config = load_sweep(written(folder, f"run: {RUN}\ngrid: {{window: [4, 8]}}"))
    run_sweep(config, folder / "out", lambda *_: None)
    return config, folder / "out"


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda mine, other: mine | {"rows": []}, "lacks a method"),
        (lambda mine, other: mine | {"rows": [*mine["rows"], {}]}, "lacks a method"),
        (lambda mine, other: mine | {"rows": [*mine["rows"], {"method": []}]}, "lacks a method"),
        (lambda mine, other: mine | {"config": []}, "has another"),
        (lambda mine, other: {k: v for k, v in mine.items() if k != "config"}, "has another"),
        (lambda mine, other: mine | {"rows": mine["rows"][:1]}, "lacks a method"),
        (lambda mine, other: mine | {"rows": [{"method": row["method"]} for row in mine["rows"]]}, "lacks a method"),
        (lambda mine, other: other, "has another window"),
        (lambda mine, other: mine | {"config": {}}, "has another"),
    ],
)
def test_a_finished_point_of_something_else_is_refused(
    finished: tuple[SweepConfig, Path], harm: Any, said: str, tmp_path: Path
) -> None:
    """It was left out, ended the sweep with a traceback, or stood in the place of another one."""
    config, out = finished
    shutil.copytree(out, tmp_path / "out")
    (tmp_path / "out" / "summary.json").unlink()
    mine, other = (tmp_path / "out" / "points" / point.key / "summary.json" for point in points(config))
    mine.write_text(json.dumps(harm(*(json.loads(path.read_text()) for path in (mine, other)))))
    with pytest.raises(BadInput, match=f"is not that of window=4 \\(it {said}"):
        run_sweep(config, tmp_path / "out", lambda *_: None)


def test_points_that_differ_in_their_link_may_not_be_exchanged(tmp_path: Path) -> None:
    """The rows of one link were shown as those of the other."""
    config = load_sweep(written(tmp_path, f"run: {RUN}\ngrid: {{rtt_ms: [20, 200]}}"))
    run_sweep(config, tmp_path / "out", lambda *_: None)
    first, second = (tmp_path / "out" / "points" / point.key for point in points(config))
    first.rename(tmp_path / "first")
    second.rename(first)
    (tmp_path / "first").rename(second)
    (tmp_path / "out" / "summary.json").unlink()
    with pytest.raises(BadInput, match=r"is not that of rtt_ms=20 \(it has another channel"):
        run_sweep(config, tmp_path / "out", lambda *_: None)


def test_a_drafter_that_remembers_earlier_requests_remembers_those_of_its_point(tmp_path: Path) -> None:
    """Sweeps and demos decoded without the memory that their configuration stated."""
    run = RUN.replace("[greedy, fh]", "[greedy]").replace("prompts: 3", "prompts: 6, drafter: suffix, max_tokens: 60")
    text = f"run: {run}\ngrid: {{drafter_memory: [0, 50000], window: [8, 12]}}"
    config = load_sweep(written(tmp_path, text))
    together = {row["point"]: row["aal"] for row in run_sweep(config, tmp_path / "out", lambda *_: None)["rows"]}
    aals = {(point.config.drafter_memory, point.config.window): together[point.key] for point in points(config)}
    assert all(aals[50_000, window] > aals[0, window] for window in (8, 12))
    alone = msgspec.structs.replace(config, grid={"drafter_memory": [50_000], "window": [12]})
    (row,) = run_sweep(alone, tmp_path / "alone", lambda *_: None)["rows"]
    assert row["aal"] == aals[50_000, 12]


def test_rows_repeat_to_the_byte_and_passes_are_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same sweep twice, the second one interrupted and resumed."""
    config = load_sweep(written(tmp_path, f"run: {RUN}\ngrid: {{window: [4, 8], rate_mbps: [5, 500], per: [0, 0.1]}}"))
    loaded: list[Any] = []
    load = sweep_run.load_pair
    monkeypatch.setattr(sweep_run, "load_pair", lambda *a: loaded.append(load(*a)) or loaded[-1])
    first = run_sweep(config, tmp_path / "a", lambda *_: None)
    assert len(loaded) == 1
    assert loaded[0].engine.passed < loaded[0].engine.asked / 6  # eight points and two methods see the same tokens
    assert loaded[0].drafter.drafted < loaded[0].drafter.asked / 6

    class StopHere(Exception):
        pass

    def stop(done: int, total: int, text: str) -> None:
        if done == 3:
            raise StopHere

    with pytest.raises(StopHere):
        run_sweep(config, tmp_path / "b", stop)
    assert not (tmp_path / "b" / "summary.json").exists()
    assert len(list((tmp_path / "b" / "points").iterdir())) == 3
    second = run_sweep(config, tmp_path / "b", lambda *_: None)
    assert json.dumps(first["rows"]) == json.dumps(second["rows"])
    assert len(first["rows"]) == 16
    assert all(row["lossless"] for row in first["rows"])
    with pytest.raises(BadInput, match="another sweep"):
        run_sweep(load_sweep(written(tmp_path, f"run: {RUN}")), tmp_path / "b", lambda *_: None)
    with pytest.raises(BadInput, match="not empty"):
        run_sweep(config, tmp_path, lambda *_: None)


def test_a_point_that_is_a_link_is_not_emptied(tmp_path: Path) -> None:
    config = load_sweep(written(tmp_path, f"run: {RUN}"))
    (key,) = (point.key for point in points(config))
    (tmp_path / "a" / "points").mkdir(parents=True)
    save(config, tmp_path / "a" / "config.yaml")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("precious")
    (tmp_path / "a" / "points" / key).symlink_to(tmp_path / "thesis")
    with pytest.raises(BadInput, match=f"{key} is a link"):
        run_sweep(config, tmp_path / "a", lambda *_: None)
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.txt"]


SERIES = """
series:
  - {name: greedy, protocol: greedy}
  - {name: rejecting, protocol: greedy, payload: rejection, rtt_ms: 5}
  - {name: rule, protocol: fh, judge: digits, threshold: 1}
"""


def test_a_series_is_combined_with_the_keys_that_it_does_not_set(tmp_path: Path) -> None:
    grid = "grid: {window: [4, 8], rtt_ms: [5, 50], level: [0, 4]}"
    found = points(load_sweep(written(tmp_path, f"run: {RUN}{SERIES}{grid}")))
    by_name: dict[str, list[Any]] = {}
    for point in found:
        by_name.setdefault(point.values["name"], []).append(point)
    assert {name: len(of) for name, of in by_name.items()} == {"greedy": 8, "rejecting": 4, "rule": 4}
    assert {(p.config.methods, p.config.judge, p.config.threshold) for p in by_name["rule"]} == {(("fh",), "digits", 1)}
    assert {p.config.threshold for p in by_name["greedy"]} == {0, 0.25}
    assert {(p.channel.rtt_ms, p.payload) for p in by_name["rejecting"]} == {(5.0, "rejection")}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("series: [{name: a, colour: red}]", "unknown grid key 'colour'"),
        ("grid: {name: [a]}", "unknown grid key 'name'"),
        ("grid: {level: [17]}", "level must lie in 0..16, not 17"),
        ("series: [{protocol: smoke}]", "point name=1, protocol=smoke: unknown protocol"),
        ("grid: {judge: [stern]}", "known: strict, digits"),
        ("grid: {judge: [digits]}", "at threshold 0 judge digits keeps no mismatch"),
        ("series: [{judge: head, head: nowhere, threshold: 1}]", "no decision head at nowhere"),
    ],
)
def test_series_and_judges_that_cannot_be(text: str, words: str, tmp_path: Path) -> None:
    refuse(lambda: points(load_sweep(written(tmp_path, f"run: {RUN}\n{text}"))), BadInput, words)


def test_the_sweeps_of_the_paper_differ_in_what_the_paper_varies() -> None:
    names = ("table1", "fig3", "fig4", "fig5", "hardware")
    files = {f"wisv-{name}": points(load_sweep(Path(f"sweeps/wisv-{name}.yaml"))) for name in names}
    windows = {10, 16, 24, 32, 64}
    for name, rtts in (("wisv-table1", {50}), ("wisv-fig4", {5, 50}), ("wisv-fig5", {50})):
        for series in {p.values["name"] for p in files[name]}:
            mine = [p for p in files[name] if p.values["name"] == series]
            cells = {(p.config.window, p.channel.uplink_mbps, p.channel.rtt_ms) for p in mine}
            assert cells == {(w, r, rtt) for w in windows for r in (20, 500) for rtt in rtts}
    for name, found in files.items():
        assert name == "wisv-hardware" or all(p.channel.profile == "wisv" and p.config.prompts == 250 for p in found)
        assert name == "wisv-hardware" or any(p.config.judge == "digits" for p in found)
        assert name == "wisv-hardware" or any(p.config.head == "bundled:blind" for p in found)
    assert {p.config.threshold * 16 for p in files["wisv-fig3"]} >= set(range(17))
    assert {p.channel.file for p in files["wisv-hardware"]} == {"static-2m", "static-20m"}
    assert all(p.channel.is_proxied for p in files["wisv-hardware"])


def test_rows_say_by_what_they_were_judged(tmp_path: Path) -> None:
    """A greedy series, the rule without digits, and a head at three thresholds, whose passes are shared."""
    target = bundled().require("target")
    drafter = bundled().require("drafter")
    sizes = [
        json.loads((path / "config.json").read_text())["hidden_size"] for path in (target.parent / "drafter", target)
    ]
    head = head_files(
        tmp_path / "head",
        drafter_hidden=sizes[0],
        target_hidden=sizes[1],
        target_fingerprint=model_fingerprint(target),
        drafter_fingerprint=model_fingerprint(drafter),
        thresholds=((0.0, 1.0), (1.0, 0.5)),
    )
    text = f"""
run: {RUN}
series:
  - {{name: greedy, protocol: greedy}}
  - {{name: rule, protocol: fh, judge: digits, threshold: 1}}
  - {{name: none, protocol: fh, judge: head, head: {head}, level: 0}}
  - {{name: all, protocol: sh, judge: head, head: {head}, level: 16}}
  - {{name: own, protocol: fh, judge: table, head: {head}, threshold: 1}}
  - {{name: budget, protocol: fh, judge: budget, quality_budget: 0.2, head: {head}, threshold: 1}}
grid: {{rate_mbps: [5], window: [8]}}
"""
    rows = {
        r["series"]: r
        for r in run_sweep(load_sweep(written(tmp_path, text)), tmp_path / "out", lambda *_: None)["rows"]
    }
    found = {name: (r["judge"], r["head"], r["threshold"], r.get("level")) for name, r in rows.items()}
    assert found == {
        "greedy": (None, None, None, None),
        "rule": ("digits", None, None, None),
        "none": ("head", str(head), 0.0, 0),
        "all": ("head", str(head), 1.0, 16),
        "own": ("table", str(head), None, None),
        "budget": ("budget 0.2", str(head), None, None),
    }
    assert rows["none"]["lossless"] and rows["none"]["aal"] == rows["greedy"]["aal"]
    assert rows["all"]["acceptance"] == 1.0 and not rows["all"]["lossless"]
    assert rows["greedy"]["aal"] <= rows["budget"]["aal"] <= rows["own"]["aal"] <= rows["all"]["aal"]
    assert rows["greedy"]["judge_s"] == rows["none"]["judge_s"] == rows["rule"]["judge_s"] == 0 < rows["own"]["judge_s"]


@pytest.mark.parametrize("path", sorted(Path("sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_sweep_that_comes_along_can_run(path: Path) -> None:
    assert points(load_sweep(path))
