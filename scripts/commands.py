"""Write docs/reference/commands/ from the command line: `python -m scripts.commands`.

A page for each command, and one for all configurations.

`--check` writes nothing and fails where a page is not what the command line says now.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import typer
from typer.cli import get_docs_for_click

from scripts.locked import ROOT
from testbed.cli.main import command_line
from testbed.cli.options import with_names
from testbed.options import Config, Option, options_of

FOLDER = ROOT / "docs" / "reference" / "commands"
INDEX = "README.md"
HEAD = """\
# Commands

Written by `python -m scripts.commands` from the command line. Exit codes: 0 done, 1 the work failed, 2 bad input, 130
interrupted. `--json` prints one JSON document on stdout.

"""
CONFIGURATION = "configuration.md"
CONFIGURATIONS = """\
# Configuration

Written by `python -m scripts.commands` from the configuration classes. Each command below takes its fields as options,
and all of them from a YAML file with `--config FILE`; run directories keep theirs in `config.yaml`. Unknown keys and
values out of bounds are refused.
"""
COLUMNS = "| field | type | default | unit | bounds | description |\n|---|---|---|---|---|---|"
COMPLETION = """
## Completion in the shell

`testbed --install-completion` sets it up for the shell that it is called from (bash, zsh, fish), `--show-completion`
prints what would be set up. `testbed` must be on the path: activate `.venv`, or put `.venv/bin` on it.
"""


def pages() -> dict[str, str]:
    """Every page by its file's name."""
    group: Any = command_line()
    context = typer.Context(group, info_name="testbed")
    lines = HEAD.splitlines()
    found = {}
    for name in sorted(group.commands):
        command = group.commands[name]
        text = with_names(get_docs_for_click(obj=command, ctx=context, name=name, call_prefix="testbed"))
        found[f"{name}.md"] = "\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n"
        about = (command.help or "").strip().split("\n\n")[0].replace("\n", " ")
        lines.append(f"- [`testbed {name}`]({name}.md): {about}")
    lines.append(f"- [Configuration]({CONFIGURATION}): the fields of `--config FILE` for every command that takes it")
    return {INDEX: "\n".join(lines) + "\n" + COMPLETION, CONFIGURATION: configurations(group), **found}


def configurations(group: Any) -> str:
    """The page of all configurations: a table each, in the order of their commands."""
    takers: dict[type[Config], list[str]] = {}
    for name, command in sorted(walk(group, "testbed")):
        if kind := getattr(command.callback, "configuration", None):
            takers.setdefault(kind, []).append(f"`{name}`")
    parts = [CONFIGURATIONS]
    for kind, names in takers.items():
        parts += [f"\n## {kind.__name__}\n", f"For {', '.join(names)}.\n", COLUMNS, *map(row, options_of(kind))]
    return "\n".join(parts) + "\n"


def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Commands by full name, without the groups."""
    if not hasattr(command, "commands"):
        yield name, command
    for inner_name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, f"{name} {inner_name}")


def row(one: Option) -> str:
    """A field's line in the table of its configuration."""
    kind = one.kind.__name__ if one.kind in (str, int, float, bool) else str(one.kind)
    default = "required" if one.default is msgspec.NODEFAULT else f"`{msgspec.json.encode(one.default).decode()}`"
    values = with_names(f" One of {{{one.kinds}}}.") if one.kinds else ""
    cells = (f"`{one.name}`", f"`{kind}`", default, one.unit or "", str(one.bounds or ""), one.about + values)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


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
