"""Write docs/reference/commands/, a page for each command, from the command line itself: `python -m scripts.commands`.

`--check` writes nothing and fails where a page is not what the command line says now.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer
from typer.cli import get_docs_for_click
from typer.main import get_command

from scripts.environment import ROOT
from testbed.cli.main import app

FOLDER = ROOT / "docs" / "reference" / "commands"
INDEX = "README.md"
HEAD = """\
# Commands

Written by `python -m scripts.commands` from the command line. Exit codes: 0 done, 1 the work failed, 2 bad input, 130
interrupted. `--json` prints one JSON document on stdout.

"""
COMPLETION = """
## Completion in the shell

`testbed --install-completion` sets it up for the shell that it is called from (bash, zsh, fish), `--show-completion`
prints what would be set up. `testbed` must be on the path: activate `.venv`, or put `.venv/bin` on it.
"""


def pages() -> dict[str, str]:
    """Every page by its file's name."""
    group: Any = get_command(app)
    context = typer.Context(group, info_name="testbed")
    lines = HEAD.splitlines()
    found = {}
    for name in sorted(group.commands):
        command = group.commands[name]
        text = get_docs_for_click(obj=command, ctx=context, name=name, call_prefix="testbed")
        found[f"{name}.md"] = "\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n"
        about = (command.help or "").strip().split("\n\n")[0].replace("\n", " ")
        lines.append(f"- [`testbed {name}`]({name}.md): {about}")
    return {INDEX: "\n".join(lines) + "\n" + COMPLETION, **found}


def stale(folder: Path = FOLDER) -> list[str]:
    """Names of pages that are missing, left over, or not what the command line says."""
    wanted = pages()
    there = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    return sorted(name for name in {*wanted, *there} if wanted.get(name) != there.get(name))


def main() -> int:
    """Write or check the pages."""
    if sys.argv[1:] == ["--check"]:
        if names := stale():
            print(f"out of date: {', '.join(names)}; run python -m scripts.commands", file=sys.stderr)
        return 1 if names else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    for path in FOLDER.glob("*.md"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
