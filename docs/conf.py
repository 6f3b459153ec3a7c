"""Sphinx configuration: `make docs` builds the site in build/site, offline and with warnings as errors.

The source directory is the repository's root, so that links between pages are the same files on a code host and in the
site. Navigation follows the lists of links in the index pages.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.ext.napoleon import Config, GoogleDocstring

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

project = "testbed"
author = "the testbed's authors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = ["docs/**", "*.md", "hardware/README.md", "traces/README.md"]
exclude_patterns = [".*", "benchmarks", "build", "dist", "plans", "runs", "scripts", "sweeps", "testbed", "tests"]

html_theme = "furo"
html_title = "testbed"
html_show_sphinx = False
html_copy_source = False
html_static_path: list[str] = []
html_extra_path = ["site"]
"""`site/index.html` leads from the site's root to docs/index.html."""

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "dollarmath"]
suppress_warnings = ["myst.header"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
nitpick_ignore_regex = [("py:.*", r"(?!testbed).*")]
"""Names of other packages' types lead nowhere; the testbed's own must."""

INDEXES = {"docs/index", "docs/results/index", "docs/reference/commands/README"}
LINK = re.compile(r"^- \[([^\]]*)\]\(([^)#:]+)\.md\)", re.MULTILINE)
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


def navigation(app: Any, page: str, source: list[str]) -> None:
    """Append to an index page one hidden table of contents per section, made of the section's list of links."""
    if page not in INDEXES:
        return
    folder = posixpath.dirname(page)
    parts = HEADING.split(source[0])
    sections = zip(["", *parts[1::2]], parts[::2], strict=True)
    for caption, text in sections:
        entries = [
            f"{label.strip('`')} <{posixpath.normpath(posixpath.join('/', folder, link))}>"
            for label, link in LINK.findall(text)
        ]
        if entries:
            lines = ["```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else []), "", *entries, "```"]
            source[0] += "\n" + "\n".join(lines) + "\n"


def docstring(_app: Any, what: str, name: str, obj: Any, _options: Any, lines: list[str]) -> None:
    """Turn a docstring as written here (Markdown code, `Args:` and `Raises:`) into reStructuredText."""
    text = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", "\n".join(lines))
    text = re.sub(r"\n\n(?=    )", "\n\n::\n\n", text)
    section = "function" if what in ("attribute", "property") else what
    lines[:] = GoogleDocstring(text, Config(napoleon_use_ivar=True), what=section, name=name, obj=obj).lines()


def setup(app: Any) -> None:
    """Connect both hooks."""
    app.connect("source-read", navigation)
    app.connect("autodoc-process-docstring", docstring)
