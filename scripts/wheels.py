"""Check that a UE can be installed without a compiler: `.venv/bin/python -m scripts.wheels [--json]` (`make wheels`).

Builds and inspects the testbed's wheel. Then, for each Python version of a UE, resolves the extra `ue` at the pinned
versions for 64-bit Arm Linux, and asks pip which packages have wheels there. Nothing is installed, and for most
packages only the metadata is fetched. Exit code 1: the wheel's contents are wrong, or a package has no wheel, except
llama-cpp-python, which the set-up scripts in `hardware/` build on the board.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.environment import LLAMA, output
from scripts.indexes import index_options, pip_settings, uv_variables
from scripts.locked import CONSTRAINTS, ROOT

PYTHONS = ("3.10", "3.11", "3.12")
"""Python of JetPack 6, of Raspberry Pi OS bookworm, and of Ubuntu 24.04."""
GLIBC = range(28, 16, -1)
"""Minor versions of glibc 2 that wheels may require; the boards have 2.35 or newer."""
PLATFORMS = (*(f"manylinux_2_{minor}_aarch64" for minor in GLIBC), "manylinux2014_aarch64")
MUST_CARRY = (
    "testbed/py.typed",
    "testbed/models/data/drafter.gguf",
    "testbed/models/data/target/tokenizer.json",
    "testbed/bundled/hardware/profiles/wisv.yaml",
    "testbed/bundled/plans/rehearsal.yaml",
    "testbed/bundled/sweeps/wisv-table1.yaml",
)
MUST_NOT = re.compile(r"(^|/)(tests?|__pycache__|\.git|conftest\.py)(/|$)|\.py[co]$")
BINARY = (".gguf", ".safetensors", ".npz", ".npy", ".parquet", ".ubj", ".pyc")


class Package(NamedTuple):
    """A package of the UE on one Python version."""

    python: str
    name: str
    version: str
    wheel: str | None
    """File that pip would install; None: source only."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks and print the results."""
    parser = argparse.ArgumentParser(description="Check that a UE can be installed without a compiler.")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "dist", help="directory for the testbed's wheel (default dist)"
    )
    args = parser.parse_args(argv)
    try:
        wheel = build(args.out)
        wrong = wheel_faults(wheel)
        packages = [package for python in PYTHONS for package in ask(python)]
    except subprocess.CalledProcessError as exc:
        print(f"wheels: {Path(exc.cmd[0]).name} failed (exit code {exc.returncode}); see above", file=sys.stderr)
        return 1
    source = sorted({package.name for package in packages if package.wheel is None})
    if args.json:
        rows = [package._asdict() for package in packages]
        print(json.dumps({"wheel": str(wheel), "wrong": wrong, "source_only": source, "packages": rows}))
    else:
        show(wheel, wrong, packages)
    return 1 if wrong or set(source) - {LLAMA} else 0


# ---------------------------------------------------------------- the testbed's wheel


def build(folder: Path) -> Path:
    """Build the testbed's wheel into `folder`."""
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*.whl")}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder.absolute())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr.strip(), file=sys.stderr)
        done.check_returncode()
    return next(path for path in folder.glob("*.whl") if before.get(path) != path.stat().st_mtime_ns)


def wheel_faults(wheel: Path, places: Iterable[str] = (str(ROOT), str(Path.home()))) -> list[str]:
    """Missing and unwanted files of a wheel, and files that contain paths of this machine."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        wrong = [f"lacks {name}" for name in MUST_CARRY if name not in names]
        wrong += [f"carries {name}" for name in names if MUST_NOT.search(name)]
        own = [f"{place}/".encode() for place in places]
        for name in names:
            if not name.endswith(BINARY) and any(place in archive.read(name) for place in own):
                wrong.append(f"{name} names a place on this machine")
    return wrong


# ---------------------------------------------------------------- dependencies


def ask(python: str) -> list[Package]:
    """All packages of the extra `ue` on 64-bit Arm, with the wheels that pip finds."""
    pins = resolve(python)
    wheels = find_wheels(python, pins)
    return [Package(python, name, version, wheels.get(name)) for name, version in pins.items()]


def resolve(python: str) -> dict[str, str]:
    """Versions of the extra `ue` and its dependencies from constraints.txt, by package."""
    settings = pip_settings(output(sys.executable, "-m", "pip", "config", "list"))
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-annotate", "--no-header"]
    command += ["--python-version", python, "--python-platform", "aarch64-manylinux_2_28"]
    command += ["--constraints", str(CONSTRAINTS), "--extra", "ue", *index_options(settings, None)]
    environment = {**os.environ, **uv_variables(settings, os.environ)}
    done = subprocess.run(
        [*command, str(ROOT / "pyproject.toml")], check=True, stdout=subprocess.PIPE, text=True, env=environment
    )
    pins = (line.partition(";")[0].strip().partition("==") for line in done.stdout.splitlines() if "==" in line)
    return {name: version for name, _, version in pins}


def find_wheels(python: str, pins: dict[str, str]) -> dict[str, str]:
    """Wheels for 64-bit Arm, by package; if any is missing, packages are queried one by one."""
    wanted = {name: version for name, version in pins.items() if name != LLAMA}
    if (found := _report(python, wanted)) is None:
        alone = [_report(python, {name: version}) or {} for name, version in wanted.items()]
        found = {name: file for answer in alone for name, file in answer.items()}
    return {**found, **(_report(python, {LLAMA: pins[LLAMA]}) or {})} if LLAMA in pins else found


def _report(python: str, pins: dict[str, str]) -> dict[str, str] | None:
    """Wheels that pip would install, by package; None if any package has no wheel."""
    abi = f"cp{python.replace('.', '')}"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed"]
    command += ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    command += [option for tag in (abi, "abi3", "none") for option in ("--abi", tag)]
    command += [option for tag in PLATFORMS for option in ("--platform", tag)]
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        command += ["--target", scratch, "--report", str(report)]
        done = subprocess.run(
            [*command, *(f"{name}=={version}" for name, version in pins.items())],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            if "No matching distribution" not in done.stderr:
                print(done.stderr.strip(), file=sys.stderr)
                done.check_returncode()
            return None
        items = json.loads(report.read_text())["install"]
    return {normal(item["metadata"]["name"]): Path(item["download_info"]["url"]).name for item in items}


def normal(name: str) -> str:
    """Package name in the form of constraints.txt."""
    return re.sub(r"[-_.]+", "-", name).lower()


def show(wheel: Path, wrong: Sequence[str], packages: Sequence[Package]) -> None:
    """Print a line per package, with its wheels on each Python version."""
    print(f"{wheel.name}: {'; '.join(wrong) or 'carries what it should'}\n")
    print(f"64-bit Arm Linux, extra ue, Python {', '.join(PYTHONS)}:")
    by_name: dict[str, list[Package]] = {}
    for package in packages:
        by_name.setdefault(package.name, []).append(package)
    for name, found in sorted(by_name.items()):
        versions = "/".join(dict.fromkeys(package.version for package in found))
        kinds = dict.fromkeys("source" if package.wheel is None else kind(package.wheel) for package in found)
        print(f"  {name} {versions}: {', '.join(kinds)}")
    source = sorted({package.name for package in packages if package.wheel is None})
    print(f"\nsource alone: {', '.join(source) or 'none'} (hardware/*.sh builds {LLAMA} on the board)")


def kind(file: str) -> str:
    """Tags of a wheel, such as `cp310-cp310-manylinux_2_28_aarch64`; `any` for pure Python."""
    tags = "-".join(file.removesuffix(".whl").split("-")[-3:])
    return "any" if tags.endswith("none-any") else tags


if __name__ == "__main__":
    sys.exit(main())
