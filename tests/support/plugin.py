"""Packages from outside the testbed, as an installer would leave them: modules and their entry points on PYTHONPATH.

All is taken from a section of `docs/guides/extending.md`: files from `python` and `yaml` blocks that begin with
`# NAME`, entry points from `toml` blocks, as a `pyproject.toml` has them, and the commands to run from `sh` blocks.
Commands are child processes, and so are the base station and the UE that they start.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "guides" / "extending.md"
PATIENCE_S = 250


class Installed:
    """A folder with what a section of the page describes, installed."""

    def __init__(self, folder: Path, heading: str) -> None:
        text = PAGE.read_text(encoding="utf-8")
        section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
        assert section, f"{PAGE.name} has no section {heading!r}"
        self.folder, self._text = folder, section[1]
        for block in (*self._blocks("python"), *self._blocks("yaml")):
            if named := re.match(r"# (\S+)\n", block):
                (folder / named[1]).write_text(block, encoding="utf-8")
        points = re.sub(r'^\[project\.entry-points\."(.*)"\]$', r"[\1]", "".join(self._blocks("toml")), flags=re.M)
        info = folder / "outside-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(points.replace('"', ""))

    def _blocks(self, language: str) -> list[str]:
        return re.findall(rf"^```{language}\n(.*?)^```$", self._text, re.DOTALL | re.MULTILINE)

    def run_page(self) -> None:
        """Run the commands that the section shows, in order, each with exit status 0."""
        lines = "".join(self._blocks("sh")).splitlines()
        assert lines, "the section shows no commands"
        for line in lines:
            program, *arguments = line.partition("  #")[0].split()
            assert program == "testbed"
            self.testbed(*arguments)

    def testbed(self, *arguments: str) -> str:
        """Run a command of the testbed in the folder; returns its standard output."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(self.folder), str(REPOSITORY)])}
        done = subprocess.run(
            [sys.executable, "-m", "testbed", *arguments],
            env=environment, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"testbed {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def rows(self, run: str) -> list[dict[str, Any]]:
        """Rows of a run directory or sweep in the folder."""
        rows: list[dict[str, Any]] = json.loads((self.folder / run / "summary.json").read_text())["rows"]
        return rows

    def report(self, directory: str) -> str:
        """A report in the folder."""
        return (self.folder / directory / "report.html").read_text(encoding="utf-8")
