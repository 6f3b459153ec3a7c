"""Resolves the target and drafter of an experiment: given files, or the bundled pair."""

from __future__ import annotations

from pathlib import Path

from testbed.assets.model_names import named
from testbed.bs.engines.registry import ENGINES
from testbed.bs.engines.target import Target, describe
from testbed.errors import ModelError
from testbed.models.bundle import bundled, bundled_target


def target_for(engine: str, model: str | None) -> str:
    """The target by path, name or Hugging Face id, or the bundled one; if bundled or named, in the engine's format.

    Raises:
        ModelError: a name whose model has not been fetched, or the bundled target is missing.
    """
    gguf = ENGINES.choose(engine).gguf
    return named(model, "drafter" if gguf else "target") if model else str(bundled_target(gguf))


def drafter_for(drafter: str | None) -> Path:
    """The drafter's GGUF file by path or name, or the bundled one.

    Raises:
        ModelError: a name whose model has not been fetched, or the bundled drafter is missing.
    """
    return Path(named(drafter, "drafter")) if drafter else bundled().require("drafter")


def pair_paths(model: str | None, drafter: str | None, engine: str = "vllm") -> tuple[Target, Path]:
    """Describe the target and locate the drafter's file.

    Args:
        model: directory, Hugging Face id, GGUF file or name; None: the bundled target.
        drafter: GGUF file or name; None: the bundled drafter.
        engine: the target's; it decides the format of the bundled one.

    Raises:
        ModelError: a missing target or drafter.
    """
    path = drafter_for(drafter)
    if not path.is_file():
        raise ModelError(f"{path}: no such file; give a drafter in GGUF format")
    return describe(target_for(engine, model)), path
