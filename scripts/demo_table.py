"""Write the table of a demo into README and docs/results/demo.md: `python -m scripts.demo_table RUN_DIR`.

Both pages hold the same table, with the first columns that `testbed demo` prints, in its order.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from scripts.locked import ROOT
from testbed.cli.output import COLUMNS
from testbed.cli.tables import markdown_rows
from testbed.experiments.results.directory import read_summary
from testbed.experiments.results.traffic import by_meaning

PAGES = ("README.md", "docs/results/demo.md")
SHOWN = tuple(COLUMNS)[: tuple(COLUMNS).index("downlink_bytes") + 1]
TABLE = re.compile(r"^\| method \| n \|.*\n(?:\|.*\n)+", re.M)


def table(run: Path) -> str:
    """The table of a run directory.

    Raises:
        BadInput: not a run directory.
    """
    return markdown_rows([by_meaning(row) for row in read_summary(run)["rows"]], {key: COLUMNS[key] for key in SHOWN})


def write(text: str, root: Path = ROOT) -> None:
    """Replace the table in every page."""
    for page in PAGES:
        path = root / page
        path.write_text(TABLE.sub(lambda _: text, path.read_text(encoding="utf-8"), count=1), encoding="utf-8")


def tables(root: Path = ROOT) -> list[str]:
    """The tables in the pages."""
    return [TABLE.findall((root / page).read_text(encoding="utf-8"))[0] for page in PAGES]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table; conditions beside it (machine, date, n) are written by hand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run directory of testbed demo")
    write(table(parser.parse_args(arguments).run))


if __name__ == "__main__":
    main()
