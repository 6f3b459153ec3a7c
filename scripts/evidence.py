"""Which figures of README and docs lack evidence: `python -m scripts.evidence [--check]`.

A section of a results page with figures states machine, date, command, rows (the file behind them), seeds and n, and
interval. On any other page, a number with a unit that is measured must also stand on a results page that its section
links to. Numbers that the program sets stand in its sources, profiles, sweeps or plans, those of the papers on a line
that says so; neither is measured.

`--check` exits with status 1 if a number of README or docs stands on no results page, a section leaves a field out, a
command names a file that is not there, or a file of rows is missing. Without it, sections that state that a field was
not kept or not recorded are printed as well.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from scripts.locked import ROOT

FIELDS = ("Machine", "Date", "Command", "Rows", "Seeds, n", "Interval")
UNKNOWN = ("not recorded", "not kept")
RESULTS = "docs/results"
ELSEWHERE = ("docs/reference/", "docs/notebooks/", "docs/results/", "CHANGELOG.md")
"""Pages of definitions and past changes."""
CITED = re.compile(r"paper|WISP|WISV|edge SD|review|arXiv|Table \d|Fig\. |eq\. ", re.I)
"""Lines whose numbers are those of a source."""
NUMBER = re.compile(
    r"(?<![\w.,\-/=…^])(?P<value>\d[\d,]*(?:\.\d+)?)(?:\s|\u00a0)?"
    r"(?P<unit>%|percent|ms|µs|s|seconds|minutes|KiB|MiB|GiB|kB|MB|GB|tok/s|tokens/s|times)(?![\w/])"
)
CELL = re.compile(r"(?<=\| )(?P<value>\d[\d,]*\.\d+)(?P<unit>)(?= \|)")
"""A cell of a table that is a decimal number; its unit stands in the header."""
SCALES = {"ms": 1e-3, "µs": 1e-6, "minutes": 60.0, "%": 1e-2, "percent": 1e-2, "kB": 1e3, "MB": 1e6, "GB": 1e9}
SOURCES = ("testbed", "sweeps", "hardware", "plans", "traces", "pyproject.toml")
LITERAL = re.compile(r"(?<![\w.])\d[\d_]*(?:\.\d+)?(?:e-?\d+)?(?!\w)")


class Section(NamedTuple):
    """A section of a page."""

    page: str
    line: int
    """Line number of the heading."""
    heading: str
    text: str
    fields: dict[str, str]
    """Evidence that it states, by name."""


class Missing(NamedTuple):
    """What a place of a page lacks."""

    page: str
    line: int
    what: str
    fatal: bool
    """Whether `--check` fails."""


def sections(page: str, text: str) -> Iterator[Section]:
    """Sections of a page, each with the evidence that it states."""
    found: list[tuple[int, str, list[str]]] = [(1, "", [])]
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"##? ", line):
            found.append((number, line.lstrip("# "), []))
        found[-1][2].append(line)
    for number, heading, lines in found:
        joined = re.sub(r"\n  +", " ", "\n".join(lines))
        stated = dict(re.findall(r"^- (" + "|".join(FIELDS) + r"): (.*)$", joined, re.M))
        yield Section(page, number, heading, "\n".join(lines), stated)


def of_results(page: str, text: str, root: Path = ROOT) -> Iterator[Missing]:
    """What sections of a results page lack, if they hold figures."""
    for one in sections(page, text):
        if not one.fields and "\n|---" not in one.text:
            continue
        absent = [name for name in FIELDS if name not in one.fields]
        if absent:
            yield Missing(page, one.line, f"{one.heading}: no {', '.join(absent)}", True)
        lost = [name for name, value in one.fields.items() if value.startswith(UNKNOWN)]
        if lost:
            yield Missing(page, one.line, f"{one.heading}: {', '.join(lost)} not kept", False)
        for file in re.findall(
            r"(?:sweeps|benchmarks|tests|plans)/[\w./-]+\.(?:yaml|py)", one.fields.get("Command", "")
        ):
            if not (root / file).exists():
                yield Missing(page, one.line, f"{one.heading}: the command names {file}, which is not there", True)
        for file in re.findall(r"\]\(([^)#]+\.csv)\)", one.fields.get("Rows", "")):
            if not (root / page).parent.joinpath(file).exists():
                yield Missing(page, one.line, f"{one.heading}: no file {file}", True)


def of_page(page: str, text: str, root: Path = ROOT) -> Iterator[Missing]:
    """Numbers of another page that stand on no results page to which their section links."""
    for one in sections(page, re.sub(r"^```.*?^```", _blank, text, flags=re.M | re.S)):
        known = "".join(_linked(page, one.text, root))
        for offset, line in enumerate(one.text.splitlines()):
            plain = re.sub(r"`[^`]*`", "", line)
            for match in (*NUMBER.finditer(plain), *CELL.finditer(plain)):
                value = match["value"]
                if re.search(rf"(?<![\d.]){re.escape(value)}(?![\d.]*\d)", known) or CITED.search(line):
                    continue
                if not _set(value, match["unit"], root):
                    yield Missing(page, one.line + offset, f"{match[0]} stands on no results page", True)


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def _linked(page: str, text: str, root: Path) -> Iterator[str]:
    """Texts of the results pages to which a section links."""
    for link in re.findall(r"\]\(([^)#\s]+\.md)", text):
        path = ((root / page).parent / link).resolve()
        if path.is_relative_to((root / RESULTS).resolve()) and path.exists():
            yield path.read_text(encoding="utf-8")


def _set(value: str, unit: str, root: Path) -> bool:
    """Whether the program's sources hold a number, in its unit or in the base unit."""
    number = float(value.replace(",", ""))
    return any(f"{each:.9g}" in literals(root) for each in (number, number * SCALES.get(unit, 1.0)))


@functools.cache
def literals(root: Path) -> frozenset[str]:
    """Numbers in sources and files of settings."""
    found = set()
    for folder in SOURCES:
        for path in [root / folder] if (root / folder).is_file() else (root / folder).rglob("*"):
            if path.suffix in (".py", ".yaml", ".json", ".toml") and "__pycache__" not in path.parts:
                found |= set(LITERAL.findall(path.read_text(encoding="utf-8", errors="replace")))
    return frozenset(f"{float(each.replace('_', '')):.9g}" for each in found)


def missing(root: Path = ROOT) -> list[Missing]:
    """Everything that pages lack, in order."""
    found: list[Missing] = []
    for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        page, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        if page == f"{RESULTS}/index.md":  # names machines, holds no figures
            continue
        if page.startswith(RESULTS):
            found += of_results(page, text, root)
        elif not page.startswith(ELSEWHERE):
            found += of_page(page, text, root)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print what pages lack."""
    parser = argparse.ArgumentParser(description="List figures of README and docs that lack evidence.")
    parser.add_argument("--check", action="store_true", help="leave out fields that were not kept; fail on all else")
    check = parser.parse_args(arguments).check
    found = [one for one in missing() if one.fatal or not check]
    for one in found:
        print(f"{one.page}:{one.line}: {one.what}")
    fatal = sum(one.fatal for one in found)
    print(
        f"{fatal} numbers or files without evidence"
        + ("" if check else f", {len(found) - fatal} sections state that a field was not kept")
    )
    return int(check and fatal > 0)


if __name__ == "__main__":
    sys.exit(main())
