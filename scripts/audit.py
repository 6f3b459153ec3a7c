"""Audit of the installed packages: `.venv/bin/python -m scripts.audit [--files] [--hashes] [--json]` (`make audit`).

Lists version, licence and dependants of each installed package, and checks that nothing else is installed than what
`constraints.txt` pins, and that `hashes.txt` has hashes of all pins. `--files` compares each installed file with the
hash recorded in its wheel, and finds files of the environment that no wheel recorded; `--hashes` compares `hashes.txt`
with what the package index publishes now.

Advisories are not checked: the only database that comes as a package, safety-db, ended in July 2021, and the maintained
ones (OSV, the PyPI advisory database) are online services. With a network, run `pip-audit -r constraints.txt --no-deps
--disable-pip`.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import importlib.metadata
import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from scripts.environment import OWN
from scripts.lock import ask_hashes
from scripts.locked import CONSTRAINTS, HASHES, Hashes, read_hashes

UNPINNED = ("pip", OWN)
"""Packages that may be installed without a pin."""
NEEDERS = 3
"""Maximum number of dependants named in a row."""
MADE_HERE = re.compile(
    r"pyvenv\.cfg|requirements\.txt|uv\.txt|\.lock|\.setup-[\w,-]+|wheels/[^/]+\.whl|bin/(activate(\.\w+)?|Activate\.ps1|python[\d.]*)"
)
"""Files that Python's venv, uv and the set-up make, relative to the environment."""
COMPILED = re.compile(rf"(.+?)\.{sys.implementation.cache_tag}(-pytest-[\w.]+)?(\.opt-[12])?\.pyc")
UNKNOWN = "not stated"


class Pin(NamedTuple):
    """A line of constraints.txt."""

    name: str
    version: str
    here: bool
    """Whether the pin applies to this Python."""


class Package(NamedTuple):
    """An installed package."""

    name: str
    version: str
    licence: str
    needed_by: tuple[str, ...]
    """Installed packages that require it, including the testbed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table and the problems found; return 1 if there are any."""
    parser = argparse.ArgumentParser(description="List the installed packages and compare them with constraints.txt.")
    parser.add_argument("--files", action="store_true", help="compare each installed file with its recorded hash")
    parser.add_argument("--hashes", action="store_true", help="compare the hashes of all pins with the package index")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of the table")
    args = parser.parse_args(argv)
    installed = list(importlib.metadata.distributions(path=[sysconfig.get_path("purelib")]))
    packages, pins = read_packages(installed), read_pins(CONSTRAINTS.read_text())
    wrong = differences(packages, pins)
    if args.files:
        wrong += [problem for distribution in installed for problem in changed_files(distribution)]
        wrong += unrecorded_files(Path(sys.prefix), installed)
    counts = {"pinned": len(pins), "installed": len(packages), "without a licence": without_licence(packages)}
    locked = read_hashes(HASHES.read_text())
    wrong += unlocked(pins, locked)
    counts["files with hashes"] = sum(len(digests) for digests in locked.values())
    if args.hashes:
        published = ask_hashes(CONSTRAINTS.read_text())
        wrong += other_hashes(locked, published)
        counts["packages whose hashes were compared with the index"] = len(published)
    if args.json:
        document = {"packages": [p._asdict() for p in packages], **counts, "wrong": wrong, "advisories": None}
        print(json.dumps(document))
    else:
        print_table(packages)
        print(", ".join(f"{count} {what}" for what, count in counts.items()) + "; no advisory was looked up")
    for problem in wrong:
        print(f"audit: {problem}", file=sys.stderr)
    return 1 if wrong else 0


def print_table(packages: Sequence[Package]) -> None:
    """Print one line per package."""
    widths = [max(len(getattr(p, field)) for p in packages) for field in ("name", "version")]
    for p in packages:
        others = len(p.needed_by) - NEEDERS
        needed = ", ".join(p.needed_by[:NEEDERS]) + (f" and {others} more" if others > 0 else "")
        print(f"{p.name:{widths[0]}}  {p.version:{widths[1]}}  {p.licence:28.28}  {needed or 'nobody: a tool'}")


# ---------------------------------------------------------------- pinned and installed packages


def read_pins(text: str) -> list[Pin]:
    """Parse constraints.txt."""
    pins = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            pin, _, marker = line.partition(";")
            name, _, version = pin.strip().partition("==")
            pins.append(Pin(str(canonicalize_name(name)), version, not marker or Marker(marker.strip()).evaluate()))
    return pins


def read_packages(installed: Iterable[importlib.metadata.Distribution]) -> list[Package]:
    """Installed packages, sorted by name."""
    found = {str(canonicalize_name(d.metadata["Name"])): d for d in installed}
    needed: dict[str, set[str]] = {name: set() for name in found}
    for name, distribution in found.items():
        for other in requirements(distribution):
            needed.get(other, set()).add("testbed" if name == OWN else name)
    return [
        Package(name, found[name].version, licence(found[name]), tuple(sorted(needed[name], key=by_importance)))
        for name in sorted(found)
    ]


def by_importance(name: str) -> tuple[bool, str]:
    """Sort key: the testbed first, then by name."""
    return name != "testbed", name


def requirements(distribution: importlib.metadata.Distribution) -> Iterator[str]:
    """Names of the packages that a package requires; extras count for the testbed only."""
    own = canonicalize_name(distribution.metadata["Name"]) == OWN
    for line in distribution.requires or ():
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if own or requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield str(canonicalize_name(requirement.name))


def licence(distribution: importlib.metadata.Distribution) -> str:
    """Licence from the metadata: an expression, a short text, or classifiers."""
    metadata = distribution.metadata
    stated, text = ((metadata.get_all(field) or [""])[0] for field in ("License-Expression", "License"))
    if not stated:
        text = " ".join(text.split())
        stated = text if 0 < len(text) <= 60 and text.upper() != "UNKNOWN" else ""
    if not stated:
        classifiers = [c.rpartition(" :: ")[2] for c in metadata.get_all("Classifier") or () if c.startswith("License")]
        stated = ", ".join(c for c in classifiers if c != "OSI Approved")
    return stated or UNKNOWN


def without_licence(packages: Iterable[Package]) -> int:
    """Number of packages without a stated licence."""
    return sum(p.licence == UNKNOWN for p in packages)


def differences(packages: Iterable[Package], pins: Iterable[Pin]) -> list[str]:
    """Differences between installed packages and pins."""
    pinned = {pin.name: pin.version for pin in pins if pin.here}
    found = []
    for package in packages:
        version = package.version.partition("+")[0]
        if package.name in UNPINNED:
            continue
        if package.name not in pinned:
            found.append(f"{package.name} {package.version} is installed and not pinned")
        elif pinned[package.name] != version:
            found.append(f"{package.name} {package.version} is installed, {pinned[package.name]} is pinned")
    return found


# ---------------------------------------------------------------- hashes


def changed_files(distribution: importlib.metadata.Distribution) -> Iterator[str]:
    """Files that differ from the hashes in their wheel, or are missing."""
    for path in distribution.files or ():
        if path.hash is None or path.suffix == ".pyc":
            continue
        try:
            digest = digest_of(Path(str(distribution.locate_file(path))), path.hash.mode)
        except OSError as exc:
            yield f"{distribution.metadata['Name']}: {path} cannot be read: {exc.strerror}"
            continue
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != path.hash.value:
            yield f"{distribution.metadata['Name']}: {path} is not what its wheel recorded"


def unrecorded_files(environment: Path, installed: Iterable[importlib.metadata.Distribution]) -> Iterator[str]:
    """Files of an environment whose hash no wheel recorded, but for `MADE_HERE` and what Python compiled from recorded
    files, which is not compared with them.
    """
    recorded = set()
    for distribution in installed:
        site = os.path.realpath(str(distribution.locate_file("")))
        files = (path for path in distribution.files or () if path.hash or path.name == "RECORD")
        recorded |= {os.path.normpath(os.path.join(site, path)) for path in files}
    for name, path in sorted(files_below(environment)):
        folder, file = os.path.split(path)
        compiled = COMPILED.fullmatch(file) if os.path.basename(folder) == "__pycache__" else None
        source = compiled and os.path.join(os.path.dirname(folder), f"{compiled[1]}.py")
        if not (recorded & {path, source} or MADE_HERE.fullmatch(name)):
            yield f"{name} belongs to no package"


def files_below(environment: Path) -> Iterator[tuple[str, str]]:
    """Files, and links to folders, by name relative to the environment and by path. Folders directly below it may be
    links.
    """
    seen = set()
    for top in sorted(environment.iterdir()):
        if not top.is_dir():
            yield top.name, str(top)
        elif (begin := str(top.resolve())) not in seen:  # lib64 is lib
            seen.add(begin)
            for folder, folders, files in os.walk(begin):
                links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
                for path in (os.path.join(folder, name) for name in (*files, *links)):
                    yield os.path.join(top.name, os.path.relpath(path, begin)), path


def digest_of(path: Path, kind: str) -> bytes:
    """Hash of a file, read in blocks."""
    digest = hashlib.new(kind)
    with path.open("rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.digest()


def unlocked(pins: Iterable[Pin], hashes: Hashes) -> list[str]:
    """Pins without hashes, and hashes of what is not pinned."""
    pinned = {f"{pin.name}=={pin.version}" for pin in pins}
    found = [f"{pin} is pinned and has no hash" for pin in sorted(pinned) if not hashes.get(pin)]
    return found + [
        f"{pin} has hashes and is not pinned" for pin in sorted(hashes) if pin.partition("+")[0] not in pinned
    ]


def other_hashes(locked: Hashes, published: Hashes) -> list[str]:
    """Pins of which the index publishes files that `hashes.txt` does not allow, or none of those that it allows."""
    found = []
    for pin in sorted(published):
        ours, theirs = locked.get(pin, set()), published[pin]
        if not ours & theirs:
            found.append(f"{pin}: the index has none of the files whose hashes are locked")
        elif theirs - ours:
            found.append(f"{pin}: the index has {len(theirs - ours)} files whose hashes are not locked (make lock)")
    return found


if __name__ == "__main__":
    sys.exit(main())
