"""Figures of results: names as they are, numbers at their axes, and no link followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import pytest

from testbed.experiments.plots.style import FORMATS, Figure, canvas, legend, save_figure, write_figure

NAMES = ("a $x^$ b", "cost $5 and $6 \\frac{", "$", "_x^2")


def drawn() -> Any:
    """Lines of each name, with the names at an axis, in the legend and in a title, and a logarithmic axis."""
    figure, axes = canvas(1, 1)
    one = axes[0, 0]
    for i, name in enumerate(NAMES):
        one.plot([0, 1, 2, 3], [10.0**-i, 1, 10, 1000], label=f"{name} ")
    one.set_xticks(range(len(NAMES)), NAMES)
    one.set_title(NAMES[0])
    one.set_ylabel(NAMES[1])
    one.set_yscale("log")
    legend(figure, axes)
    return figure


def test_names_with_dollar_signs_are_no_formulas(tmp_path: Path) -> None:
    """`$` around what is no formula ended a report."""
    png = write_figure(Figure("f", "", drawn), tmp_path, "1", FORMATS)
    assert png.startswith(b"\x89PNG") and (tmp_path / "1-f.pdf").read_bytes().startswith(b"%PDF")
    svg = (tmp_path / "1-f.svg").read_text()
    assert svg.count(NAMES[0]) >= 3 and svg.count(NAMES[1]) >= 3
    assert "<!-- $\\mathdefault" in svg and ">$\\mathdefault" not in svg  # a comment before drawn powers of ten


@pytest.mark.parametrize("name", ["f.png", "f.svg"])
def test_a_figure_replaces_a_link_and_does_not_follow_it(name: str, tmp_path: Path) -> None:
    """A directory from somebody else may hold a link with the name of a figure, to any file."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    folder = tmp_path / "plots"
    folder.mkdir()
    (folder / name).symlink_to(precious)
    assert save_figure(drawn, folder / name) == folder / name
    assert precious.read_text() == "precious"
    assert not (folder / name).is_symlink() and (folder / name).stat().st_size > 1000


def test_settings_of_the_current_directory_do_not_count(tmp_path: Path) -> None:
    """matplotlib reads `matplotlibrc` there, which can have LaTeX run."""
    before = save_figure(drawn, tmp_path / "before.png").read_bytes()
    with matplotlib.rc_context({"text.usetex": True, "figure.facecolor": "red", "axes.linewidth": 5}):
        assert save_figure(drawn, tmp_path / "after.png").read_bytes() == before
