"""Regenerate `constraints.txt`: `.venv/bin/python -m scripts.lock [--upgrade]` (`make lock`), with Python 3.11.

Resolves pyproject.toml three times with pip's indexes: the whole CPU environment; the UE on Python 3.10, for versions
that differ; and the whole CUDA environment with the versions of the first, for packages that only CUDA needs. Existing
pins are kept if they still fit; `--upgrade` takes the newest versions.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from scripts.environment import (
    CONSTRAINTS,
    LEFT_OUT,
    LEFT_OUT_ON_CPU,
    OTHER_EXTRAS,
    ROOT,
    index_options,
    output,
    pip_settings,
)

HEAD = """\
# Exact versions of everything that the testbed runs with, direct or not. Written by `make lock`; edit pyproject.toml,
# not this file. One file serves every machine: lines below "CUDA" matter where there is a GPU, and lines marked with
# python_version < '3.11' on a UE with an older Python. torch has no local version here (+cpu, +cu130): the index has.
"""
TOOLS = ("uv", "editables")
"""Used by the set-up, not in any extra."""
HELD = ("apache-tvm-ffi==0.1.11",)
"""Pinned by vLLM for CUDA; the CPU resolution would take a newer version."""


def main() -> int:
    """Resolve three times and write the file."""
    parser = argparse.ArgumentParser(description="Pin all dependencies of the testbed.")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions, even if the pinned ones fit")
    upgrade = parser.parse_args().upgrade
    if sys.version_info[:2] != (3, 11):
        print("lock: run this with Python 3.11, the version that the BS is tested with", file=sys.stderr)
        return 1
    pinned = "" if upgrade else CONSTRAINTS.read_text(encoding="utf-8")
    newer, older = pins_without(pinned, "<"), pins_without(pinned, ">=")
    extras = ("ue", "lab", "dev", *OTHER_EXTRAS)
    on_cpu = resolve((*extras, "bs-cpu"), LEFT_OUT + LEFT_OUT_ON_CPU, [*TOOLS, *HELD], newer)
    on_310 = resolve(("ue", "dev"), (), TOOLS, older, python="3.10")
    on_cuda = resolve((*extras, "bs-cuda"), LEFT_OUT, TOOLS, newer, held=on_cpu, cuda=True)
    lines = [HEAD, *marked(on_cpu, on_310), "\n# CUDA\n"]
    lines += [f"{name}=={version}\n" for name, version in on_cuda.items() if name not in on_cpu]
    CONSTRAINTS.write_text("".join(lines), encoding="utf-8")
    return 0


def pins_without(text: str, other: str) -> str:
    """Pins of an existing file, without those whose marker compares with `other`, which are for another Python."""
    pins = (line.partition("; python_version ") for line in text.splitlines() if "==" in line and line[0] != "#")
    return "".join(f"{pin}\n" for pin, _, marker in pins if not marker.startswith(f"{other} "))


def marked(newer: dict[str, str], older: dict[str, str]) -> Iterable[str]:
    """Lines of the file: one per package if both Pythons have the same version, else one for each Python."""
    for name in sorted(newer.keys() | older.keys()):
        new, old = newer.get(name), older.get(name)
        if new and old in (new, None):
            yield f"{name}=={new}\n"
            continue
        if new:
            yield f"{name}=={new}; python_version >= '3.11'\n"
        yield f"{name}=={old}; python_version < '3.11'\n"


def resolve(
    extras: Iterable[str],
    left_out: Iterable[str],
    more: Iterable[str],
    kept: str,
    *,
    python: str = "3.11",
    held: dict[str, str] | None = None,
    cuda: bool = False,
) -> dict[str, str]:
    """Versions that uv resolves for the extras, by package, without local versions (+cpu).

    Versions in `kept` are preferred, those in `held` are required.
    """
    settings = pip_settings(output(sys.executable, "-m", "pip", "config", "list"))
    torch_index = os.environ.get("TORCH_INDEX")
    if cuda:
        settings.pop("find-links", None)
        torch_index = None
    with tempfile.TemporaryDirectory() as scratch:
        names = ("overrides", "constraints", "in.txt", "out.txt")
        overrides, constraints, requirements, resolved = (Path(scratch) / name for name in names)
        resolved.write_text(kept)
        overrides.write_text("".join(f"{name}; python_version < '0'\n" for name in left_out))
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in (held or {}).items()))
        requirements.write_text("".join(f"{line}\n" for line in more))
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-annotate", "--no-header"]
        command += ["--python-version", python, "--constraints", str(constraints), "--overrides", str(overrides)]
        command += [*index_options(settings, torch_index)]
        command += [option for extra in extras for option in ("--extra", extra)]
        command += ["--output-file", str(resolved), str(ROOT / "pyproject.toml"), str(requirements)]
        subprocess.run(command, check=True)
        text = resolved.read_text()
    pins = (line.partition(";")[0].strip() for line in text.splitlines() if "==" in line)
    return {name: version.partition("+")[0] for name, _, version in (pin.partition("==") for pin in pins)}


if __name__ == "__main__":
    sys.exit(main())
