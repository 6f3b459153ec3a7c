"""Regenerate `constraints.txt` and `hashes.txt` (`make lock`), with Python 3.11.

    .venv/bin/python -m scripts.lock [--upgrade] [--hashes]

Resolves pyproject.toml three times: the whole CPU environment; the UE on Python 3.10, for versions
that differ; and the whole CUDA environment with the versions of the first, for packages that only CUDA needs. Existing
pins are kept if they still fit; `--upgrade` takes the newest versions, `--hashes` resolves nothing.

pip's main index counts. Only torch built for CPUs may come from another one. The hashes are those of all files of each
pin at the index, for whichever machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from scripts.environment import LEFT_OUT, LEFT_OUT_ON_CPU, OTHER_EXTRAS, SOURCES, TOOLS, output
from scripts.indexes import index_options, pip_settings
from scripts.locked import CONSTRAINTS, HASHES, ROOT, Hashes, read_hashes, with_hashes

HEAD = """\
# Exact versions of everything that the testbed runs with, direct or not. Written by `make lock`; edit pyproject.toml,
# not this file. One file serves every machine: lines below "CUDA" matter where there is a GPU, and lines marked with
# python_version < '3.11' on a UE with an older Python. torch has no local version here (+cpu, +cu130): the index has.
"""
HASHES_HEAD = """\
# SHA-256 of all files of the packages in constraints.txt, sources included. Written by `make lock`. The set-up installs
# nothing else. torch with "+cpu" is built for CPUs.
"""
INSTALLERS = (*TOOLS, *(tool for _, tools in SOURCES.values() for tool in tools))
"""Used by the set-up, not in any extra."""
HELD = ("apache-tvm-ffi==0.1.11",)
"""Pinned by vLLM for CUDA; the CPU resolution would take a newer version."""


def main() -> int:
    """Resolve three times and write both files."""
    parser = argparse.ArgumentParser(description="Pin all dependencies of the testbed.")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions, even if the pinned ones fit")
    parser.add_argument("--hashes", action="store_true", help="write the hashes only, of the versions that are pinned")
    args = parser.parse_args()
    if sys.version_info[:2] != (3, 11):
        print("lock: run this with Python 3.11, the version that the BS is tested with", file=sys.stderr)
        return 1
    if not args.hashes:
        write_constraints("" if args.upgrade else CONSTRAINTS.read_text(encoding="utf-8"))
    known = read_hashes(HASHES.read_text(encoding="utf-8")) if HASHES.exists() else {}
    HASHES.write_text(f"{HASHES_HEAD}{locked(CONSTRAINTS.read_text(encoding='utf-8'), known)}", encoding="utf-8")
    return 0


def write_constraints(pinned: str) -> None:
    """Resolve three times and write `constraints.txt`; pins in `pinned` are kept if they fit."""
    newer, older = pins_without(pinned, "<"), pins_without(pinned, ">=")
    extras = ("ue", "lab", "sionna", "dev", *OTHER_EXTRAS)
    on_cpu = resolve((*extras, "bs-cpu"), LEFT_OUT + LEFT_OUT_ON_CPU, [*INSTALLERS, *HELD], newer)
    on_310 = resolve(("ue", "dev"), (), INSTALLERS, older, python="3.10")
    on_cuda = resolve((*extras, "bs-cuda"), LEFT_OUT, INSTALLERS, newer, held=on_cpu)
    lines = [HEAD, *marked(on_cpu, on_310), "\n# CUDA\n"]
    lines += [f"{name}=={version}\n" for name, version in on_cuda.items() if name not in on_cpu]
    CONSTRAINTS.write_text("".join(lines), encoding="utf-8")


def locked(constraints: str, known: Hashes) -> str:
    """Requirements with the hashes of all files of all pins. Of torch for CPUs, each index has builds of its own: known
    hashes are kept as long as the version stays.
    """
    found = ask_hashes(constraints)
    torch = next(f"{pin}+cpu" for pin in found if pin.startswith("torch=="))
    cpu = read_hashes(ask([torch], *every_index(), deps=True))
    found[torch] = cpu[torch] | known.get(torch, set())
    return with_hashes(found, found)


def ask_hashes(constraints: str) -> Hashes:
    """Hashes of the files of all pins at pip's main index."""
    pins = [line for line in constraints.splitlines() if "==" in line and line[0] != "#"]
    newer = [line.partition(";")[0] for line in pins if "python_version < " not in line]
    older = [line.partition(";")[0] for line in pins if "python_version < " in line]
    return read_hashes(ask(newer)) | read_hashes(ask(older, "--python-version", "3.10", *main_index()))


def ask(pins: Iterable[str], *options: str, deps: bool = False) -> str:
    """The pins as requirements with hashes, from pip's main index if `options` name no other; with all that they need,
    since uv hashes files in folders then only.
    """
    with tempfile.TemporaryDirectory() as scratch:
        wanted = Path(scratch) / "in.txt"
        wanted.write_text("".join(f"{pin}\n" for pin in pins))
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-annotate", "--no-header"]
        command += ["--generate-hashes", *([] if deps else ["--no-deps"]), *(options or main_index()), str(wanted)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main_index() -> list[str]:
    """uv options for pip's main index."""
    settings = pip_settings(output(sys.executable, "-m", "pip", "config", "list"))
    return index_options(
        {name: value for name, value in settings.items() if name in ("index-url", "trusted-host")}, None
    )


def every_index() -> list[str]:
    """uv options for all of pip's indexes, and for torch's."""
    settings = pip_settings(output(sys.executable, "-m", "pip", "config", "list"))
    return index_options(settings, os.environ.get("TORCH_INDEX"))


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
) -> dict[str, str]:
    """Versions that uv resolves for the extras, by package, without local versions (+cpu).

    Versions in `kept` are preferred, those in `held` are required.
    """
    indexes = every_index() if "bs-cpu" in extras else main_index()
    with tempfile.TemporaryDirectory() as scratch:
        names = ("overrides", "constraints", "in.txt", "out.txt")
        overrides, constraints, requirements, resolved = (Path(scratch) / name for name in names)
        resolved.write_text(kept)
        overrides.write_text("".join(f"{name}; python_version < '0'\n" for name in left_out))
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in (held or {}).items()))
        requirements.write_text("".join(f"{line}\n" for line in more))
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-annotate", "--no-header"]
        command += ["--python-version", python, "--constraints", str(constraints), "--overrides", str(overrides)]
        command += [*indexes]
        command += [option for extra in extras for option in ("--extra", extra)]
        command += ["--output-file", str(resolved), str(ROOT / "pyproject.toml"), str(requirements)]
        subprocess.run(command, check=True)
        text = resolved.read_text()
    pins = (line.partition(";")[0].strip() for line in text.splitlines() if "==" in line)
    return {name: version.partition("+")[0] for name, _, version in (pin.partition("==") for pin in pins)}


if __name__ == "__main__":
    sys.exit(main())
