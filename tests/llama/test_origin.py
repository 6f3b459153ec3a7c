"""GGUF files that keep the decision heads of the directory that they were converted from."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import pytest

from testbed.assets.fingerprints import model_fingerprint
from testbed.bs.judging.head import HeadJudge
from testbed.bs.judging.registry import make_judge
from testbed.errors import ModelError
from testbed.llama.origin import DIFFERENCE, STATES_TOLERANCE, states_fingerprint
from testbed.models.bundle import bundled_target, head_directory
from testbed.models.real.parity import export_and_prove


def compared(file: Path) -> float:
    """The difference that a file's metadata hold."""
    entry = gguf.GGUFReader(file).fields[DIFFERENCE]
    return float(entry.parts[entry.data[0]][0])


def test_a_directory_has_its_own_states(random_models: dict[str, Path]) -> None:
    assert states_fingerprint(random_models["llama"]) == model_fingerprint(random_models["llama"])


@pytest.mark.parametrize("kind", ["llama", "qwen2-tied", "qwen3"])
def test_a_compared_file_has_the_states_of_its_directory(
    kind: str, random_models: dict[str, Path], tmp_path: Path
) -> None:
    parity = export_and_prove(random_models[kind], tmp_path / "f32.gguf")
    assert compared(tmp_path / "f32.gguf") == pytest.approx(parity.hidden_diff / parity.hidden_scale, rel=1e-6)
    assert states_fingerprint(tmp_path / "f32.gguf") == model_fingerprint(random_models[kind])


def test_a_file_that_was_not_compared_has_states_of_its_own(random_ggufs: dict[str, Path]) -> None:
    assert states_fingerprint(random_ggufs["llama"]) == model_fingerprint(random_ggufs["llama"])


def test_a_file_whose_states_differ_has_states_of_its_own(random_models: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "small.gguf"
    parity = export_and_prove(random_models["llama"], file, "q8_0")
    agree = parity.hidden_diff / parity.hidden_scale <= STATES_TOLERANCE
    expected = random_models["llama"] if agree else file
    assert states_fingerprint(file) == model_fingerprint(expected)
    reader = gguf.GGUFReader(file, "r+")
    entry = reader.fields[DIFFERENCE]
    entry.parts[entry.data[0]][0] = 1.01 * STATES_TOLERANCE
    reader.data.flush()
    assert states_fingerprint(file) == model_fingerprint(file)


def test_the_bundled_heads_judge_a_target_on_llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target = bundled_target(gguf=True)
    assert compared(target) < 1e-3
    assert isinstance(make_judge("head", head_directory(), None, target), HeadJudge)


def test_heads_of_another_target_are_refused(
    random_models: dict[str, Path], random_ggufs: dict[str, Path], tmp_path: Path
) -> None:
    export_and_prove(random_models["llama"], tmp_path / "other.gguf")
    for file in (tmp_path / "other.gguf", shutil.copy(random_ggufs["llama"], tmp_path / "alone.gguf")):
        with pytest.raises(ModelError, match="trained for target"):
            make_judge("head", head_directory(), None, Path(file))
