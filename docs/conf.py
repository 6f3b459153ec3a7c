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

from sphinx.ext.napoleon import Config as Settings
from sphinx.ext.napoleon import GoogleDocstring

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from testbed.options import Config, options_of  # noqa: E402

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

highlight_language = "text"
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "dollarmath"]
suppress_warnings = ["myst.header"]
autodoc_typehints_format = "short"
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
    if is_config(obj):
        lines += ["", *(f"- `{one.name}` = `{one.default!r}`: {one.about}" for one in options_of(obj)), ""]
    text = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", "\n".join(lines))
    text = re.sub(r"(?m)^(\S.*)\n\n(?=    )", r"\1\n\n.. code-block:: python\n\n", text)
    section = "function" if what in ("attribute", "property") else what
    lines[:] = GoogleDocstring(text, Settings(napoleon_use_ivar=True), what=section, name=name, obj=obj).lines()


def is_config(obj: Any) -> bool:
    """Whether it is a configuration: its fields are listed with their descriptions."""
    return isinstance(obj, type) and issubclass(obj, Config)


def signature(_app: Any, _what: str, _name: str, obj: Any, *_: Any) -> tuple[str, None] | None:
    """Leave the fields of a configuration out of its signature."""
    return ("(**fields)", None) if is_config(obj) else None


def setup(app: Any) -> None:
    """Connect the hooks."""
    app.connect("source-read", navigation)
    app.connect("autodoc-process-docstring", docstring)
    app.connect("autodoc-process-signature", signature)
