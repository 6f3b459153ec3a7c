"""Writes exports of runs and sweeps: files of other tools, below `exports/`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testbed import __version__
from testbed.errors import BadInput
from testbed.experiments.exports import aiperf, guidellm, ianvs
from testbed.experiments.exports.rows import exported_rows
from testbed.experiments.report.data import Shown
from testbed.experiments.results.directory import write_text
from testbed.experiments.results.folders import refuse_link
from testbed.files import make_folder

EXPORTS = ("guidellm", "aiperf", "ianvs")


def check_export(name: str) -> None:
    """Refuse an unknown export.

    Raises:
        BadInput: it is unknown.
    """
    if name not in EXPORTS:
        raise BadInput(f"unknown export {name!r}; known: {', '.join(EXPORTS)}")


def write_exports(shown: Sequence[Shown], out: Path, name: str) -> list[Path]:
    """Write the export of each run; returns the files.

    Raises:
        BadInput: an unknown export, a directory without requests and time stamps, or a folder in `out` that is a link.
    """
    check_export(name)
    return [path for one in shown for path in _write(one, out, name)]


def _write(shown: Shown, out: Path, name: str) -> list[Path]:
    folder = out / "exports" / shown.label
    rows, about = exported_rows(shown), _about(shown)
    if name == "ianvs":
        texts = {folder / ianvs.FILE: ianvs.table(rows, about)}
    elif name == "guidellm":
        texts = {folder / guidellm.FILE: _json(guidellm.document(rows, about))}
    else:
        names = [re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{i}-{one.name}") for i, one in enumerate(rows, 1)]
        texts = {
            folder / each / aiperf.FILE: _json(aiperf.document(one, about))
            for each, one in zip(names, rows, strict=True)
        }
    for path, text in texts.items():
        refuse_link(path.parent, out)
        make_folder(path.parent)
        write_text(path, text)
    return list(texts)


def _about(shown: Shown) -> dict[str, Any]:
    """Version and origin of a run."""
    config, document = shown.config, shown.document
    return {
        "testbed": str(document.get("testbed", __version__)),
        "created": str(document.get("created", "")),
        "path": str(shown.path),
        "target": str(config.get("model") or "bundled"),
        "drafter": str(config.get("drafter") or "bundled"),
        "dataset": str(config.get("dataset", "")),
    }


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, allow_nan=False) + "\n"
