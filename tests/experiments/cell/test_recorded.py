"""Recorded drafts in a cell against the drafter that they were recorded from."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import msgspec
import pytest

from testbed.assets.bundled_files import find
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.channel.radio.config import RadioConfig
from testbed.errors import BadInput
from testbed.experiments.cell import run as cells
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.parts import decoding
from testbed.experiments.cell.real.run import run_cell_really
from testbed.experiments.cell.recorded import RecordedWork, ReplayingDrafter, traffic_language
from testbed.experiments.cell.rows import document
from testbed.experiments.deployment.traffic_ue import SYNTHETIC, VOCAB
from testbed.experiments.inputs.pair import drafter_for
from testbed.experiments.lockstep.drafts import DraftsConfig, record, record_all
from testbed.models.bundle import bundled
from testbed.ue.drafters.base import Drafter
from testbed.ue.drafters.recorded import DraftRecording, Recorded, load_recording
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.llama.drafter import LlamaDrafter
from testbed.ue.windows.predictor import load_predictor

SMALL, ENDS = 64, (7, 11)
PROMPTS = [[1 + i, 2, 3 + i, 4 + i % 3] for i in range(20)]


def drafter() -> SyntheticDrafter:
    return SyntheticDrafter(vocab_size=SMALL, alpha=0.6)


@functools.cache
def recorded() -> list[Recorded]:
    config = DraftsConfig(prompts=len(PROMPTS), depth=17, max_tokens=40)
    return record_all(drafter(), SyntheticEngine(vocab_size=SMALL), PROMPTS, config, ENDS, lambda done, of: None)


def saved(folder: Path, name: str = "d") -> str:
    path = folder / "drafts.msgpack"
    DraftRecording(
        drafter=name, target="t", tokenizer="v", vocab_size=SMALL, depth=17, end_ids=list(ENDS), prompts=recorded()
    ).save(path)
    return str(path)


def cell(path: str, **more: Any) -> CellConfig:
    group = msgspec.convert({"name": "recorded", "count": 3, "drafts": path, "class_tps": 4.0, **more}, UeGroup)
    return CellConfig(seconds=9.0, radio=RadioConfig(bandwidth_hz=5e6), ues=(group, UeGroup(name="synthetic")))


def live(config: CellConfig, source: Drafter, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The same cell with a drafter that computes."""

    def computed(work: RecordedWork) -> ReplayingDrafter:
        return ReplayingDrafter(work, source, traffic_language, VOCAB, 1, SYNTHETIC)

    monkeypatch.setattr(decoding, "virtual_replay", computed)
    return document(config, cells.run_cell(config))


@pytest.mark.parametrize(
    "more",
    [{}, {"protocol": "fh", "lookahead": 1}, {"protocol": "sh", "window": 3}, {"window_rule": "hinted"},
     {"window_rule": "predicted", "window": 16}, {"window_rule": "gain", "rate_rps": 0.5}, {"lookahead": None}],
)  # fmt: skip
def test_rows_are_those_of_the_drafter_itself(
    more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = load_predictor(bundled().require("predictor")).info.drafter_fingerprint
    config = cell(saved(tmp_path, name), **more)
    found = document(config, cells.run_cell(config))
    assert found["rows"][0]["responses"] > 3
    if config.ues[0].window_rule != "hinted":  # which lets the target decode alone
        assert 0.4 < found["rows"][0]["acceptance_cond"] < 0.8
    assert live(config, drafter(), monkeypatch) == found


def test_rows_of_the_bundled_pair_are_those_of_llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = record(DraftsConfig(prompts=4, depth=8, max_tokens=48, engine="llama"), lambda done, of: None)
    made.save(tmp_path / "pair.msgpack")
    config = cell(str(tmp_path / "pair.msgpack"), protocol="fh")
    found = document(config, cells.run_cell(config))
    assert found["rows"][0]["responses"] > 3
    source = LlamaDrafter(drafter_for(None), made.vocab_size, context=512, sequences=4)
    try:
        assert live(config, source, monkeypatch) == found
    finally:
        source.close()


@pytest.mark.parametrize(
    ("name", "prompts", "agreeing"), [("bundled", 32, (0.75, 0.95)), ("smollm2", 24, (0.97, 0.99))]
)
def test_recordings_that_come_with_the_testbed_decode_without_loss(
    name: str, prompts: int, agreeing: tuple[float, float]
) -> None:
    config = cell(name, protocol="sh", window=8)
    (row, _) = document(config, cells.run_cell(config))["rows"]
    recording = load_recording(find("recorded drafts", name))
    assert len(recording.prompts) == prompts and recording.depth == 17
    assert row["responses"] > 3 and row["same_share"] is None
    assert agreeing[0] < row["acceptance_cond"] < agreeing[1]


def test_requests_are_those_of_the_recording(tmp_path: Path) -> None:
    """Mean lengths are those of the prompts that were drawn; the target alone gets the same ones."""
    path = saved(tmp_path)
    rows = [
        document(config, cells.run_cell(config))["rows"][0]
        for config in (cell(path), cell(path, protocol="target-only"))
    ]
    for row in rows:
        assert row["input_tokens"] == len(PROMPTS[0]) and 1 < row["output_tokens"] <= 40
    assert rows[1]["window"] == 0


def test_processes_replay_without_loss(tmp_path: Path) -> None:
    config = msgspec.structs.replace(cell(saved(tmp_path), protocol="fh"), seconds=5.0, warmup_s=1.0)
    real = document(config, run_cell_really(config))["rows"][0]
    virtual = document(config, cells.run_cell(config))["rows"][0]
    assert real["responses"] > 0
    assert real["acceptance_cond"] == pytest.approx(virtual["acceptance_cond"], abs=0.1)


def test_recordings_that_cannot_be_replayed(tmp_path: Path) -> None:
    path = saved(tmp_path)
    for more, words in (
        ({"window": 18}, "17 tokens at most, not 18"),
        ({"window": 9, "lookahead": 1}, "17 tokens at most, not 19"),
        ({"window_rule": "predicted"}, "not of the drafter"),
        ({"drafts": "nowhere"}, "no recorded draft 'nowhere'"),
    ):
        with pytest.raises(BadInput, match=words):
            cells.run_cell(cell(path, **more))  # type: ignore[arg-type]
    for more in ({"judge_keeps": 0.1, "protocol": "fh"}, {"protocol": "split"}, {"protocol": "coupled"}):
        with pytest.raises(BadInput, match="strict judge"):
            cell(path, **more)
