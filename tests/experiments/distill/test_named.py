"""A drafter that is distilled under a name: made once, found by that name, and refused where it does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from testbed.assets import model_names
from testbed.assets.model_names import DISTILLED, named
from testbed.cli.main import main
from testbed.errors import ModelError
from testbed.experiments.distill import named as recipes
from testbed.experiments.distill.config import DistillConfig
from testbed.experiments.distill.named import RECIPES, made
from testbed.experiments.distill.prepare import prepared
from testbed.ue.load_drafter import drafter_and_tokenizer, is_file, needs_target
from tests.experiments.distill.test_distill import SMALL, quiet, targets, untold

NAME = "tiny-draft"
__all__ = ["targets"]


@pytest.fixture
def recipe(targets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DistillConfig:
    """A recipe for a drafter of a random target, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = DistillConfig(target=str(targets["llama"]), **SMALL)
    monkeypatch.setitem(DISTILLED, NAME, config.target)
    monkeypatch.setitem(RECIPES, NAME, config)
    return config


def test_a_drafter_is_made_once_and_found_by_its_name(recipe: DistillConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_file(NAME) and needs_target(NAME)
    with pytest.raises(ModelError, match=f"models fetch {NAME}"):
        named(NAME, "drafter")
    card = made(NAME, quiet, untold)
    monkeypatch.setattr(recipes, "distill", None)  # whatever calls it fails
    assert made(NAME, quiet, untold) == card and 0 < card["acceptance"] <= 1
    assert drafter_and_tokenizer(NAME, None, (None, None)) == (card["drafter"], Path(recipe.target))
    with pytest.raises(ModelError, match="is a drafter for"):
        named(NAME, "target")


def test_one_that_comes_with_the_package_is_not_made(
    recipe: DistillConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_names, "PACKAGED", tmp_path / "package")
    folder = tmp_path / "package" / NAME
    folder.mkdir(parents=True)
    (folder / "drafter.gguf").write_bytes(b"GGUF")
    (folder / "card.json").write_text(json.dumps({"acceptance": 0.5}))
    assert named(NAME, "drafter") == str(folder / "drafter.gguf")
    assert made(NAME, quiet, untold) == {"name": NAME, "acceptance": 0.5, "drafter": str(folder / "drafter.gguf")}


def test_a_name_that_has_not_been_made_is_one_line(recipe: DistillConfig, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ue", "run", "--drafter", NAME, "--bs", "tcp://127.0.0.1:9"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"testbed models fetch {NAME}" in line


def test_recipes_can_be_prepared(targets: dict[str, Path]) -> None:
    assert RECIPES.keys() == DISTILLED.keys()
    for config in RECIPES.values():
        here = msgspec.structs.replace(
            config, target=str(targets["llama"]), layers="1", vocabulary=None, engine="transformers"
        )
        work = prepared(here)
        assert len(work.held_out) == config.held_out and len(work.prompts) == config.limit
