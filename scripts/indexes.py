"""The indexes that pip is configured with, for uv. Standard library only: used by the set-up."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path


def pip_settings(listing: str) -> dict[str, str]:
    """Parse pip's settings from `pip config list`; environment variables override files.

    Keys are pip's option names (`index-url`, `extra-index-url`, `find-links`, ...).
    """
    ranks = {"global": 0, "install": 1, ":env:": 2}
    found: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.partition(".")
        if section not in ranks or not value:
            continue
        rank = ranks[section]
        if option not in found or found[option][0] <= rank:
            found[option] = (rank, str(ast.literal_eval(value)))
    return {option: value for option, (_, value) in found.items()}


def index_options(settings: Mapping[str, str], torch_index: str | None) -> list[str]:
    """uv options for the indexes that pip is configured with. As in pip, the best version of any index is taken
    ("unsafe", since any of them may offer any package): what is installed is compared with `hashes.txt`.

    Folders that do not exist are left out: pip only warns about them, uv fails.
    """
    options = ["--index-strategy", "unsafe-best-match"]
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        options.append("--no-index")
    elif "index-url" in settings:
        options += ["--default-index", settings["index-url"]]
    for url in settings.get("extra-index-url", "").split():
        options += ["--index", url] if _there(url) else []
    for place in settings.get("find-links", "").split():
        options += ["--find-links", place] if _there(place) else []
    for host in settings.get("trusted-host", "").split():
        options += ["--allow-insecure-host", host]
    if torch_index:
        options += ["--find-links" if Path(torch_index).is_dir() else "--index", torch_index]
    return options


def _there(place: str) -> bool:
    path = place.removeprefix("file://")
    return "://" in path or Path(path).expanduser().exists()


def uv_variables(settings: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that pass pip's other settings to uv, except those that are set already."""
    names = {"cert": "SSL_CERT_FILE", "timeout": "UV_HTTP_TIMEOUT", "default-timeout": "UV_HTTP_TIMEOUT"}
    variables = {variable: settings[option] for option, variable in names.items() if option in settings}
    return {variable: value for variable, value in variables.items() if variable not in environ}
