"""How figures look: colours that colour-blind readers tell apart, markers, dashes and hatches for those who print in
grey, units on every axis; and how they are written.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from testbed.errors import BadInput

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#000000", "#999999")
"""Okabe and Ito's palette, without its yellow, which white paper swallows."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1)), (0, (4, 1, 1, 1)), (0, (6, 1, 1, 1, 1, 1)), "-", "--", ":")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "---", "+++", "ooo")
PARTS = ("draft_s", "link_s", "queue_s", "verify_s", "judge_s", "overhead_s")
PART_COLOURS = ("#0072b2", "#e69f00", "#cc79a7", "#56b4e9", "#009e73", "#999999")
FORMATS = ("png", "svg", "pdf")
DPI = 130
LABEL_IN, HANDLE_IN, MOST_COLUMNS = 0.062, 0.55, 6
"""Of a legend: width of a letter, of what goes before a label, and its most columns."""
STILL: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Metadata without the time of day."""
NO_PLOTS = "plots need matplotlib: install the extra `lab`"
SETTINGS: Any = {
    "font.size": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "lines.markersize": 4.5,
    "lines.linewidth": 1.4,
    "svg.fonttype": "none",
    "svg.hashsalt": "testbed",
    "pdf.fonttype": 42,
}


class SeriesStyle(NamedTuple):
    """Of one line or bar."""

    colour: str
    marker: str
    dash: Any
    hatch: str


class Figure(NamedTuple):
    """A figure of a report: its file's name, what it shows, and how to draw it."""

    name: str
    caption: str
    draw: Callable[[], Any]


def looks() -> Iterator[SeriesStyle]:
    """Without end; the first eight differ in colour, marker and hatch, the first 72 in colour or marker."""
    return itertools.starmap(SeriesStyle, zip(*map(itertools.cycle, (COLOURS, MARKERS, DASHES, HATCHES)), strict=False))


def look_of(names: Sequence[Any]) -> dict[Any, SeriesStyle]:
    """A look for each name, in the order in which they come."""
    return dict(zip(dict.fromkeys(names), looks(), strict=False))


def canvas(columns: int = 1, rows: int = 1, *, width: float = 3.6, height: float = 2.8, **more: Any) -> tuple[Any, Any]:
    """A figure and its axes [rows, columns].

    Raises:
        BadInput: no plotting library.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure as Canvas
    except ImportError as exc:
        raise BadInput(NO_PLOTS) from exc
    with mpl.rc_context(SETTINGS):
        figure = Canvas(figsize=(width * columns + 0.4, height * rows + 0.3), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **more)
    return figure, axes


def legend(figure: Any, axes: Any) -> None:
    """One legend above all panels, each label once, in as many columns as the figure's width has room for."""
    found: dict[str, Any] = {}
    for one in axes.flat:
        handles, labels = one.get_legend_handles_labels()
        found |= {label: handle for handle, label in zip(handles, labels, strict=True) if label not in found}
    if found:
        column_in = LABEL_IN * max(map(len, found)) + HANDLE_IN
        columns = max(1, min(len(found), MOST_COLUMNS, int(figure.get_figwidth() / column_in)))
        figure.legend(found.values(), found.keys(), loc="outside upper center", ncols=columns, frameon=False)


def save_figure(draw: Callable[[], Any], path: Path) -> Path:
    """Draw a figure and write it; the file's ending says as what.

    Raises:
        BadInput: no plotting library, or a file that cannot be written.
    """
    (image,) = _images(draw, [path.suffix[1:]])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)
    except OSError as exc:
        raise BadInput(f"cannot write plots into {path.parent}: {exc.strerror or exc}") from exc
    return path


def write_figure(figure: Figure, folder: Path, label: str, formats: Sequence[str]) -> bytes:
    """Write a figure in every format, and return it as PNG."""
    kinds = list(dict.fromkeys(["png", *formats]))
    images = dict(zip(kinds, _images(figure.draw, kinds), strict=True))
    for kind in dict.fromkeys(formats):
        (folder / f"{label}-{figure.name}.{kind}").write_bytes(images[kind])
    return images["png"]


def _images(draw: Callable[[], Any], kinds: Sequence[str]) -> list[bytes]:
    """A figure drawn once, in every kind; the same figure gives the same bytes."""
    try:
        import matplotlib as mpl
    except ImportError as exc:
        raise BadInput(NO_PLOTS) from exc
    images = []
    with mpl.rc_context(SETTINGS):
        drawn = draw()
        for kind in kinds:
            buffer = io.BytesIO()
            drawn.savefig(buffer, format=kind, dpi=DPI, metadata=STILL.get(kind, {}))
            images.append(buffer.getvalue())
    return images


def check_formats(formats: Sequence[str]) -> None:
    """Refuse formats that are not known.

    Raises:
        BadInput: one is unknown, or there is none.
    """
    unknown = [kind for kind in formats if kind not in FORMATS]
    if unknown or not formats:
        raise BadInput(f"unknown format {', '.join(unknown) or 'none'}; known: {', '.join(FORMATS)}")
