"""Drafters that are distilled under a name: `testbed models fetch NAME` makes them where the package has none."""

from __future__ import annotations

from typing import Any

from testbed.assets.model_names import DISTILLED, distilled_folder
from testbed.experiments.distill.answers import Progress
from testbed.experiments.distill.card import DOCUMENT
from testbed.experiments.distill.config import DistillConfig
from testbed.experiments.distill.run import DRAFTER, Say, distill
from testbed.files import json_object

RECIPES = {
    "smollm2-draft": DistillConfig(
        target=DISTILLED["smollm2-draft"], engine="transformers", layers="0,1,2,3,28,29", vocabulary=8192, gguf="q4_0",
        limit=1258, invented=46_000, held_out=100, max_tokens=192, concurrency=1024, steps=11_000, rows=64, rate=1e-3,
        every=500, length=320,
    ),
}  # fmt: skip
"""How each drafter was made, or is where the package has none."""


def made(name: str, say: Say, progress: Progress) -> dict[str, Any]:
    """A drafter, from the package or the cache, or distilled now, which goes on after an interruption; returns its
    card's document with name and path.

    Raises:
        BadInput, ModelError, EngineError: as `distill`.
    """
    folder = distilled_folder(name)
    if not (folder / DOCUMENT).is_file():
        distill(RECIPES[name], folder, say, progress)
    document = json_object(folder / DOCUMENT)
    return {"name": name, **document, "drafter": str(folder / DRAFTER)}
