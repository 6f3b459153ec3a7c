"""Tables of commands: for a terminal of any width, or as Markdown, CSV, JSON or LaTeX."""

from __future__ import annotations

import csv
import functools
import inspect
import io
import json
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.main import get_command

from testbed.cli.options import OUTPUT
from testbed.cli.output import console, note, visible
from testbed.cli.screens import PanelCommand
from testbed.errors import BadInput
from testbed.experiments.results.csv_file import plain_cell
from testbed.intervals import printable

Columns = Mapping[str, tuple[str, str]]
"""Header and format of each column, by key."""
TEXT, MARKDOWN, CSV, JSON, LATEX = FORMATS = ("text", "md", "csv", "json", "latex")
ALL = "all"
"""Choice of every column that the rows have."""
NAMES_SHARE = 0.6
"""Largest share of the width for the columns that name the rows; where they are wider, rows are numbered."""
NOTHING = "–"
TEX = str.maketrans(
    {mark: rf"\{mark}" for mark in "%_&#${}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"θ": r"$\theta$", "α": r"$\alpha$", "–": "--"}
)


class TableStyle(NamedTuple):
    """How a command prints its tables."""

    form: str = TEXT
    columns: tuple[str, ...] = ()
    """Keys or headers of the columns; empty: the usual ones."""
    wide: bool = False


class TableData(NamedTuple):
    """A table as text."""

    headers: Sequence[str]
    lines: Sequence[Sequence[str]]
    names: int
    """Number of first columns that name the rows."""
    left: Sequence[bool]
    """Columns that are aligned left."""
    title: str | None = None


STYLE: ContextVar[TableStyle] = ContextVar("style", default=TableStyle())  # noqa: B039


class TableCommand(PanelCommand):
    """A command whose tables take `--format`, `--columns` and `--wide`."""

    def __init__(self, *arguments: Any, params: list[Any] | None = None, **more: Any) -> None:
        super().__init__(*arguments, params=[*(params or []), *_options()], **more)


@functools.cache
def _options() -> list[Any]:
    """The options of tables, as typer makes them of this signature; each sets its part of the style."""

    def command(
        table_format: Annotated[
            str, typer.Option("--format", help=f"Format of tables: {', '.join(FORMATS)}.", callback=_set_form)
        ] = TEXT,
        columns: Annotated[
            str | None,
            typer.Option(help=f"Columns of tables, separated by commas; {ALL} for every one.", callback=_set_columns),
        ] = None,
        wide: Annotated[
            bool, typer.Option("--wide", help="Do not divide tables that are too wide.", callback=_set_wide)
        ] = False,
    ) -> None:
        """Stand-in."""

    app = typer.Typer(add_completion=False)
    command.__annotations__ = inspect.get_annotations(command, eval_str=True, locals=locals())
    app.command()(command)
    options: list[Any] = [one for one in get_command(app).params if one.name in ("table_format", "columns", "wide")]
    for one in options:
        one.expose_value, one.rich_help_panel = False, OUTPUT
    return options


def _set_form(value: str) -> str:
    if value not in FORMATS:
        raise BadInput(f"unknown format {value!r} of tables; known: {', '.join(FORMATS)}")
    STYLE.set(STYLE.get()._replace(form=value))
    return value


def _set_columns(value: str | None) -> str | None:
    names = tuple(part.strip() for part in (value or "").split(",") if part.strip())
    STYLE.set(STYLE.get()._replace(columns=names))
    return value


def _set_wide(value: bool) -> bool:
    STYLE.set(STYLE.get()._replace(wide=value))
    return value


def chosen_format() -> str:
    """Format of tables that the command line chose."""
    return STYLE.get().form


def print_rows(rows: Sequence[Mapping[str, Any]], title: str | None, columns: Columns) -> None:
    """Print rows without empty columns; divided where the terminal is narrow, with the rows' names in each part.

    Raises:
        BadInput: none of the chosen columns is known.
    """
    shown = _chosen(rows, columns, STYLE.get().columns)
    if STYLE.get().form == JSON:
        _write(json.dumps([{key: row.get(key) for key in shown} for row in rows], indent=1) + "\n")
        return
    _print(_table(rows, shown, title))


def markdown_rows(rows: Sequence[Mapping[str, Any]], columns: Columns) -> str:
    """Rows as a Markdown table, without empty columns."""
    return _markdown(_harmless(_table(rows, _chosen(rows, columns, ()), None)))


def _table(rows: Sequence[Mapping[str, Any]], columns: Columns, title: str | None) -> TableData:
    lines = [[_cell(printable(row, key), form) for key, (_, form) in columns.items()] for row in rows]
    left = [any(isinstance(row.get(key), str) for row in rows) for key in columns]
    return TableData([header for header, _ in columns.values()], lines, _naming(lines), left, title)


def print_table(table: Table) -> None:
    """Print a table of rich in the chosen format."""
    headers = [str(column.header) for column in table.columns]
    lines = [list(map(_plain, line)) for line in zip(*(column._cells for column in table.columns), strict=True)]
    left = [column.justify == "left" for column in table.columns]
    title = None if table.title is None else _plain(table.title)
    if wanted := STYLE.get().columns:
        places = [headers.index(name) for name in wanted if name in headers]
        if wanted != (ALL,):
            _check_known([name for name in wanted if name not in headers], places, headers)
        if places:
            headers, left = [headers[i] for i in places], [left[i] for i in places]
            lines = [[line[i] for i in places] for line in lines]
    if STYLE.get().form == JSON:
        _write(json.dumps([dict(zip(headers, line, strict=True)) for line in lines], indent=1) + "\n")
        return
    _print(TableData(headers, lines, _naming(lines), left, title))


def _chosen(rows: Sequence[Mapping[str, Any]], columns: Columns, wanted: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Columns to print: those with values or, if chosen by key or header, those."""
    if not wanted:
        return {key: spec for key, spec in columns.items() if any(printable(row, key) is not None for row in rows)}
    known = {key: spec for key, spec in columns.items() if any(row.get(key) is not None for row in rows)}
    held = dict.fromkeys(key for row in rows for key, value in row.items() if not isinstance(value, dict | list))
    every = known | {key: (key, "{}") for key in held if key not in columns}
    if tuple(wanted) == (ALL,):
        return every
    by_header = {spec[0]: key for key, spec in every.items()}
    found = [name if name in every else by_header[name] for name in wanted if name in every or name in by_header]
    _check_known([name for name in wanted if name not in every and name not in by_header], found, list(every))
    return {key: every[key] for key in found}


def _check_known(unknown: Sequence[str], found: Sequence[object], known: Sequence[str]) -> None:
    """Note unknown columns, which another table of the same command may have; refuse them if no other was chosen."""
    if unknown and not found:
        raise BadInput(f"no column {', '.join(unknown)}; known: {', '.join(known)}")
    if unknown:
        note(f"this table has no column {', '.join(unknown)}; known: {', '.join(known)}")


def _cell(value: Any, form: str) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if form == "{}" and isinstance(value, float) else form.format(value)


def _naming(lines: Sequence[Sequence[str]]) -> int:
    """The smallest number of first columns that tells the rows apart; 0 if none does."""
    width = len(lines[0]) if lines else 0
    return next((n for n in range(1, width) if len({tuple(line[:n]) for line in lines}) == len(lines)), 0)


# ---------------------------------------------------------------- formats


def _harmless(data: TableData) -> TableData:
    """The table without control characters and line breaks: its text may come from results of others."""
    headers, *lines = ([visible(cell).replace("\n", " ") for cell in line] for line in (data.headers, *data.lines))
    return data._replace(headers=headers, lines=lines, title=None if data.title is None else visible(data.title))


def _print(data: TableData) -> None:
    form, data = STYLE.get().form, _harmless(data)
    if form == TEXT:
        _print_text(data, console())
    else:
        _write({MARKDOWN: _markdown, CSV: _csv, LATEX: _latex}[form](data))


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _print_text(data: TableData, out: Console) -> None:
    """One table, or several that fit the terminal."""
    if STYLE.get().wide:
        table = _rich(data, range(len(data.headers)))
        wide = Console(file=out.file, width=max(out.width, _width(table, out)), highlight=False)
        wide.print(table, soft_wrap=True)
        return
    unnamed = not data.names or _width(_rich(data, range(data.names)), out) > NAMES_SHARE * out.width
    if unnamed and _width(_rich(data, range(len(data.headers)), data.title), out) > out.width:
        data = _numbered(data)
    names, title = list(range(max(1, data.names))), data.title
    rest = [i for i in range(len(data.headers)) if i not in names]
    while True:
        tables = ([*names, *rest[:count]] for count in range(len(rest), 0, -1))
        fits = next((t for t in tables if _width(_rich(data, t, title), out) <= out.width), [*names, *rest[:1]])
        out.print(_rich(data, fits, title))
        rest, title = rest[max(1, len(fits) - len(names)) :], None
        if not rest:
            return


def _numbered(data: TableData) -> TableData:
    """The table with the number of each row in front, which names it in every part."""
    lines = [[str(number), *line] for number, line in enumerate(data.lines, 1)]
    return TableData(["#", *data.headers], lines, 1, [False, *data.left], data.title)


def _width(table: Table, out: Console) -> int:
    """Columns of a terminal that a table takes where nothing is shortened."""
    return table.__rich_measure__(out, out.options.update(max_width=1000)).maximum


def _rich(data: TableData, places: Sequence[int], title: str | None = None) -> Table:
    table = Table(title=None if title is None else Text(title), title_justify="left")
    for i in places:
        table.add_column(Text(data.headers[i]), justify="left" if data.left[i] else "right", no_wrap=True)
    for line in data.lines:
        table.add_row(*(Text(line[i]) for i in places))
    return table


def _markdown(data: TableData) -> str:
    rule = ["---" if left else "---:" for left in data.left]
    lines = [data.headers, rule, *([cell.replace("|", r"\|") for cell in line] for line in data.lines)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _csv(data: TableData) -> str:
    buffer = io.StringIO()
    cells = [["" if cell == NOTHING else cell for cell in line] for line in data.lines]
    csv.writer(buffer, lineterminator="\n").writerows(map(plain_cell, line) for line in (data.headers, *cells))
    return buffer.getvalue()


def _latex(data: TableData) -> str:
    """Needs the package booktabs."""
    body = [" & ".join(cell.translate(TEX) for cell in line) + r" \\" for line in (data.headers, *data.lines)]
    kinds = "".join("l" if left else "r" for left in data.left)
    return "\n".join(
        [rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", body[0], r"\midrule", *body[1:], r"\bottomrule",
         r"\end{tabular}", ""]
    )  # fmt: skip


def _plain(cell: Any) -> str:
    return str(getattr(cell, "plain", cell))
