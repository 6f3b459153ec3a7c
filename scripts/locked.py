"""The hashes of packages: `hashes.txt`, which `make lock` writes, and requirements that name them.

Standard library only: the set-up uses it before anything is installed.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
HASHES = ROOT / "hashes.txt"
ENTRY = re.compile(r"^([a-z0-9][a-z0-9._-]*==[^\s\\;]+)((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})(?![0-9a-f])")
Hashes = dict[str, set[str]]
"""SHA-256 of the files of a pin `name==version`, local version (+cpu) included."""


class SetupError(Exception):
    """An error that the user can fix, shown as one line."""


def read_hashes(text: str) -> Hashes:
    """Parse a file of requirements with hashes."""
    return {pin: set(HASH.findall(rest)) for pin, rest in ENTRY.findall(text)}


def with_hashes(pins: Iterable[str], hashes: Mapping[str, set[str]]) -> str:
    """Requirements with hashes, for `pip install --require-hashes`.

    Raises:
        SetupError: a pin without hashes.
    """
    lines = []
    for pin in sorted(set(pins)):
        if not hashes.get(pin):
            raise SetupError(
                f"{HASHES.name} has no hash of {pin}: make lock adds those of the indexes that pip uses here"
            )
        lines.append(" \\\n    ".join([pin, *(f"--hash=sha256:{digest}" for digest in sorted(hashes[pin]))]))
    return "".join(f"{line}\n" for line in lines)


def pins_of(text: str) -> list[str]:
    """The pins `name==version` in what `uv pip compile` prints."""
    lines = (line.partition(";")[0].strip() for line in text.splitlines() if not line.startswith(("#", " ")))
    return [line.removesuffix(" \\").strip() for line in lines if "==" in line]


def resolve(uv: Sequence[str], *options: str, environment: Mapping[str, str] | None = None) -> list[str]:
    """Pins of everything that requirements need here, at the versions of constraints.txt. Nothing is built: the source
    of a package runs while it is asked for its dependencies, and it was not compared with any hash yet.

    Args:
        uv: the command, up to the options of `uv pip compile`.
        options: files of requirements, extras, and indexes.

    Raises:
        subprocess.CalledProcessError: no solution; `stderr` says why.
    """
    command = [*uv, "pip", "compile", "--quiet", "--no-annotate", "--no-header", "--no-build"]
    command += ["--constraints", str(CONSTRAINTS), *options]
    return pins_of(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)
