"""Resolves the target and drafter of an experiment: given files, or the bundled pair."""

from __future__ import annotations

from pathlib import Path

from testbed.bs.engines.target import Target, describe
from testbed.errors import ModelError
from testbed.models.bundle import bundled


def pair_paths(model: str | None, drafter: str | None) -> tuple[Target, Path]:
    """Describe the target and locate the drafter's file.

    Args:
        model: directory or Hugging Face id; None: the bundled target.
        drafter: GGUF file; None: the bundled drafter.

    Raises:
        ModelError: a missing target or drafter.
    """
    path = Path(drafter) if drafter else bundled().require("drafter")
    if not path.is_file():
        raise ModelError(f"{path}: no such file; give a drafter in GGUF format")
    return describe(model or str(bundled().require("target"))), path
