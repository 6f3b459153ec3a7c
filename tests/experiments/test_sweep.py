"""Grids: what they hold, what they refuse, how they resume; with the bundled pair in virtual time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import BadInput, ConfigError
from testbed.experiments import sweep
from testbed.experiments.sweep import load_sweep, points, run_sweep
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
        ("{colour: [red]}", "known: window"),
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


def test_rows_repeat_to_the_byte_and_passes_are_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same sweep twice, the second time stopped in between and resumed."""
    config = load_sweep(written(tmp_path, f"run: {RUN}\ngrid: {{window: [4, 8], rate_mbps: [5, 500], per: [0, 0.1]}}"))
    loaded: list[Any] = []
    load = sweep._load
    monkeypatch.setattr(sweep, "_load", lambda *a: loaded.append(load(*a)) or loaded[-1])
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
