"""Description of targets that are GGUF files: vocabulary, end tokens, context."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import pytest

from testbed.assets.hub import no_downloads
from testbed.bs.engines.target import Target, describe, find
from testbed.errors import ModelError
from testbed.models.bundle import bundled_target
from testbed.protocols.vocabulary import fingerprint
from tests.support.ggufs import write_gemma3
from tests.support.models import PADDED_ROWS, TOKENS


def test_without_a_tokenizer_all_rows_are_tokens(random_ggufs: dict[str, Path]) -> None:
    path = random_ggufs["qwen2-padded"]
    assert describe(str(path)) == Target(path, "", TOKENS + PADDED_ROWS, (), 512)
    assert find(str(path)) == path


def test_the_tokenizer_beside_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = shutil.copy(bundled_target(gguf=True), tmp_path / "target.gguf")
    shutil.copy(bundled_target() / "tokenizer.json", tmp_path)
    target = describe(str(path))
    assert (target.tokenizer, target.end_ids) == (fingerprint(bundled_target()), ())
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 7]}))
    assert describe(str(path)).end_ids == (0, 7)


def test_a_tokenizer_of_another_model_is_refused(random_ggufs: dict[str, Path], tmp_path: Path) -> None:
    shutil.copy(bundled_target() / "tokenizer.json", tmp_path)
    path = shutil.copy(random_ggufs["llama"], tmp_path / "target.gguf")
    with pytest.raises(ModelError, match=rf"ids, the model only {TOKENS} rows"):
        describe(str(path))


@pytest.mark.parametrize(("named", "ends"), [(5, (5,)), (2**32 - 1, ())])
def test_the_files_own_end_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: int, ends: tuple[int, ...]
) -> None:
    add = gguf.GGUFWriter.add_tokenizer_model

    def with_end(self: gguf.GGUFWriter, model: str) -> None:
        add(self, model)
        self.add_eos_token_id(named)

    monkeypatch.setattr(gguf.GGUFWriter, "add_tokenizer_model", with_end)
    assert describe(str(write_gemma3(tmp_path / "model.gguf"))).end_ids == ends


@pytest.mark.parametrize("number", [-5, 2**31 - 1])
def test_an_end_token_of_a_signed_type_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    add = gguf.GGUFWriter.add_tokenizer_model

    def with_end(self: gguf.GGUFWriter, model: str) -> None:
        add(self, model)
        self.add_int32("tokenizer.ggml.eos_token_id", number)

    monkeypatch.setattr(gguf.GGUFWriter, "add_tokenizer_model", with_end)
    with pytest.raises(ModelError, match="end tokens are at most"):
        describe(str(write_gemma3(tmp_path / "model.gguf")))


def test_files_that_are_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    with pytest.raises(ModelError, match="not a GGUF file"):
        describe(str(tmp_path / "notes.txt"))
    with pytest.raises(ModelError, match="a GGUF file, or a Hugging Face id"):
        describe(str(tmp_path / "missing.gguf"))


def test_a_model_that_a_directory_names_comes_from_the_hubs_cache_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def snapshot(model: str, allow_patterns: list[str], local_files_only: bool) -> str:
        asked.append(local_files_only)
        if local_files_only:
            raise FileNotFoundError("no cached snapshot")
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    with no_downloads(), no_downloads(False), pytest.raises(ModelError, match="nor in the hub's cache"):
        find("somebody/model")
    assert find("somebody/model") == tmp_path and asked == [True, False]
