"""Shared figure style (colour-blind-safe colours, markers, dashes, hatches, legend) and deterministic saving."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from testbed.errors import BadInput
from testbed.files import whole_file

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#000000", "#999999")
"""Okabe and Ito's palette without yellow, which is hard to see on white."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1)), (0, (4, 1, 1, 1)), (0, (6, 1, 1, 1, 1, 1)), "-", "--", ":")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "---", "+++", "ooo")
PARTS = ("draft_s", "link_s", "queue_s", "verify_s", "judge_s", "overhead_s")
PART_COLOURS = ("#0072b2", "#e69f00", "#cc79a7", "#56b4e9", "#009e73", "#999999")
FORMATS = ("png", "svg", "pdf")
DPI = 130
LABEL_IN, HANDLE_IN, MOST_COLUMNS = 0.062, 0.55, 6
"""Legend: width of a letter and of a handle in inches, and maximum number of columns."""
STILL: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Metadata without dates, for reproducible files."""
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
    "text.parse_math": False,
}


class SeriesStyle(NamedTuple):
    """Style of one line or bar series."""

    colour: str
    marker: str
    dash: Any
    hatch: str

    @property
    def line(self) -> dict[str, Any]:
        """Keyword arguments of a line."""
        return {"color": self.colour, "marker": self.marker, "linestyle": self.dash}


class Figure(NamedTuple):
    """A figure of a report: file name, caption, and function that draws it."""

    name: str
    caption: str
    draw: Callable[[], Any]


def series_styles() -> Iterator[SeriesStyle]:
    """Endless styles; the first eight differ in colour, marker and hatch, the first 72 in colour or marker."""
    return itertools.starmap(SeriesStyle, zip(*map(itertools.cycle, (COLOURS, MARKERS, DASHES, HATCHES)), strict=False))


def styles_of(names: Sequence[Any]) -> dict[Any, SeriesStyle]:
    """A style for each distinct name, in order of appearance."""
    return dict(zip(dict.fromkeys(names), series_styles(), strict=False))


def canvas(columns: int = 1, rows: int = 1, *, width: float = 3.6, height: float = 2.8, **more: Any) -> tuple[Any, Any]:
    """A figure and its axes [rows, columns].

    Raises:
        BadInput: matplotlib is missing.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure as Canvas
    except ModuleNotFoundError as exc:
        raise BadInput(NO_PLOTS) from exc
    with mpl.rc_context():
        _settle(mpl)
        figure = Canvas(figsize=(width * columns + 0.4, height * rows + 0.3), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **more)
    return figure, axes


def _settle(mpl: Any) -> None:
    """Set all of matplotlib's settings: those of a `matplotlibrc` in the current directory must not count."""
    mpl.rcdefaults()
    mpl.rcParams.update(SETTINGS)


def from_zero(axes: Any) -> None:
    """Begin the vertical axis at 0, with room above the highest marker."""
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])


def legend(figure: Any, axes: Any) -> None:
    """Add one legend above all panels, with unique labels in as many columns as fit."""
    found: dict[str, Any] = {}
    for one in axes.flat:
        handles, labels = one.get_legend_handles_labels()
        found |= {label: handle for handle, label in zip(handles, labels, strict=True) if label not in found}
    if found:
        column_in = LABEL_IN * max(map(len, found)) + HANDLE_IN
        columns = max(1, min(len(found), MOST_COLUMNS, int(figure.get_figwidth() / column_in)))
        figure.legend(found.values(), found.keys(), loc="outside upper center", ncols=columns, frameon=False)


def save_figure(draw: Callable[[], Any], path: Path) -> Path:
    """Draw a figure and write it in the format given by the file's suffix.

    Raises:
        BadInput: matplotlib is missing, or the file is not writable.
    """
    (image,) = _images(draw, [path.suffix[1:]])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as part:
            part.write_bytes(image)
    except OSError as exc:
        raise BadInput(f"cannot write plots into {path.parent}: {exc.strerror or exc}") from exc
    return path


def write_figure(figure: Figure, folder: Path, label: str, formats: Sequence[str]) -> bytes:
    """Write a figure in every format; returns the PNG."""
    kinds = list(dict.fromkeys(["png", *formats]))
    images = dict(zip(kinds, _images(figure.draw, kinds), strict=True))
    for kind in dict.fromkeys(formats):
        with whole_file(folder / f"{label}-{figure.name}.{kind}") as part:
            part.write_bytes(images[kind])
    return images["png"]


def _images(draw: Callable[[], Any], kinds: Sequence[str]) -> list[bytes]:
    """Draw a figure once and render it in every format, deterministically."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as exc:
        raise BadInput(NO_PLOTS) from exc
    images = []
    with mpl.rc_context():
        _settle(mpl)
        drawn = draw()
        with mpl.rc_context({"text.parse_math": True}):  # numbers at logarithmic axes, which are drawn only now
            for kind in kinds:
                buffer = io.BytesIO()
                drawn.savefig(buffer, format=kind, dpi=DPI, metadata=STILL.get(kind, {}))
                images.append(buffer.getvalue())
    return images


def check_formats(formats: Sequence[str]) -> None:
    """Refuse unknown image formats.

    Raises:
        BadInput: an unknown format, or no format.
    """
    unknown = [kind for kind in formats if kind not in FORMATS]
    if unknown or not formats:
        raise BadInput(f"unknown format {', '.join(unknown) or 'none'}; known: {', '.join(FORMATS)}")
