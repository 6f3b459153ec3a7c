"""Reports are valid, self-contained HTML by the W3C checker, which is first shown to find errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testbed.experiments.report.page import write_report
from tests.support.html import complaints
from tests.support.reports import Page, make_capacity, make_field, make_load, make_sweep, row, save_run

MOST_BYTES = 5_000_000
VALID = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Page</title></head>
<body><h1 id="top">Page</h1><p>Text.</p><ul><li>One</li></ul><img alt="" src="data:image/png;base64,AAAA">
<table><tbody><tr><td>1</td><td>2</td></tr></tbody></table></body></html>
"""
PLANTED = {
    "an element that is not closed": ("<p>Text.</p>", "<p><b>Text.</p>"),
    "an end tag too many": ("<p>Text.</p>", "<p>Text.</p></div>"),
    "an element that no one knows": ("<p>Text.</p>", "<plot>Text.</plot>"),
    "an element of old": ("<p>Text.</p>", "<center>Text.</center>"),
    "an attribute that no one knows": ("<p>Text.</p>", "<p colour='red'>Text.</p>"),
    "an attribute without its end": ('<h1 id="top">', '<h1 id="top>'),
    "an id used twice": ("<p>Text.</p>", "<p id='top'>Text.</p>"),
    "an image without a text": ('<img alt="" ', "<img "),
    "a table within a paragraph": ("<p>Text.</p>", "<p>Text.<table><tbody><tr><td>1</td></tr></tbody></table></p>"),
    "text in a list beside its items": ("<li>One</li>", "<li>One</li>two"),
    "rows of different widths": ("</tr></tbody>", "</tr><tr><td>1</td><td>2</td><td>3</td></tr></tbody>"),
    "no title": ("<title>Page</title>", ""),
    "a letter that HTML cannot hold": ("Text.", "Text\u0001"),
    "style that is none": ("</head>", "<style>p{colour:red}</style></head>"),
}


def test_the_checker_finds_what_is_planted(tmp_path: Path) -> None:
    pages = {"nothing": VALID} | {name: VALID.replace(*change) for name, change in PLANTED.items()}
    files = {name: tmp_path / f"{i}.html" for i, name in enumerate(pages)}
    for name, text in pages.items():
        assert (name == "nothing") == (text == VALID)
        files[name].write_text(text, encoding="utf-8")
    found = complaints(list(files.values()))
    assert [name for name, file in files.items() if not found[file]] == ["nothing"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Reports of every kind of run."""
    root = tmp_path_factory.mktemp("pages")
    run = save_run(root / "run & <i>one", [row("target-only", lossless=None), row("fh", lossless=False)])
    sweep, other = make_sweep(root / "sweep"), make_sweep(root / "other", level=True)
    shown = [[run], [sweep, other, run], [make_capacity(root / "capacity"), make_load(root / "load")],
             [make_field(root / "field")]]  # fmt: skip
    return [write_report(one, root / f"out-{i}") for i, one in enumerate(shown)]


def test_reports_are_valid(pages: list[Path]) -> None:
    assert complaints(pages) == {page: [] for page in pages}


def test_reports_need_no_network_and_are_small(pages: list[Path]) -> None:
    for file in pages:
        text = file.read_text(encoding="utf-8")
        page = Page(text)
        assert not re.search(r"https?:|url\(|@import", text)
        assert not {"script", "link", "iframe", "object", "embed", "base"} & set(page.tags)
        inner = {link for link in page.links if link.startswith("#")}
        assert all(link.startswith("data:image/png;base64,") for link in set(page.links) - inner)
        assert all(f"id='{link[1:]}'" in text for link in inner)
        assert file.stat().st_size < MOST_BYTES
