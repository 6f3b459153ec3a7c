"""The notebooks of the documentation run from their first cell to their last."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Jupyter's own parts warn of
        import jupytext
        import nbclient

        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
        notebook = jupytext.read(path)
        client = nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}})
        client.execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    assert any("image/png" in output["data"] for output in shown), "no figure was shown"
    assert any("shape: (" in output["data"].get("text/plain", "") for output in shown), "no table was shown"


def test_there_are_notebooks() -> None:
    assert {path.stem for path in NOTEBOOKS} >= {"sweep", "own-scheme"}
