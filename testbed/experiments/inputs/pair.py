"""Resolves the target and drafter of an experiment: given files, or the bundled pair."""

from __future__ import annotations

from pathlib import Path

from testbed.bs.engines.registry import ENGINES
from testbed.bs.engines.target import Target, describe
from testbed.errors import ModelError
from testbed.models.bundle import bundled, bundled_target


def target_for(engine: str, model: str | None) -> str:
    """The target as given, or the bundled one in the format that an engine takes."""
    return model or str(bundled_target(ENGINES.choose(engine).gguf))


def pair_paths(model: str | None, drafter: str | None, engine: str = "vllm") -> tuple[Target, Path]:
    """Describe the target and locate the drafter's file.

    Args:
        model: directory, Hugging Face id or GGUF file; None: the bundled target.
        drafter: GGUF file; None: the bundled drafter.
        engine: the target's; it decides the format of the bundled one.

    Raises:
        ModelError: a missing target or drafter.
    """
    path = Path(drafter) if drafter else bundled().require("drafter")
    if not path.is_file():
        raise ModelError(f"{path}: no such file; give a drafter in GGUF format")
    return describe(target_for(engine, model)), path
