"""Contents of the wheel; the UE's part of it works alone, on every Python that a board may have."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts.locked import CONSTRAINTS, ROOT
from scripts.wheels import MUST_CARRY, PLATFORMS, PYTHONS, build, kind, main, normal, wheel_faults

NEVER = ("torch", "transformers", "vllm", "matplotlib", "polars")
"""Packages that a UE does not have."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dist"))


def test_our_wheel_carries_what_it_should(wheel: Path) -> None:
    assert wheel_faults(wheel) == []
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(next(name for name in archive.namelist() if name.endswith("/METADATA"))).decode()
    assert "Requires-Python: >=3.10" in metadata


def test_faults_of_a_wheel_are_found(tmp_path: Path) -> None:
    files = dict.fromkeys(MUST_CARRY[1:], b"")
    files |= {"tests/test_x.py": b"", "testbed/a.py": b"HERE = '/srv/checkout/data'\n", "testbed/b.pyc": b""}
    files |= {"testbed/fine.py": b"HERE = '/srv/checkouts'\n", "testbed/weights.gguf": b"/srv/checkout/"}
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    assert set(wheel_faults(path, ["/srv/checkout"])) == {
        f"lacks {MUST_CARRY[0]}",
        "carries tests/test_x.py",
        "carries testbed/b.pyc",
        "testbed/a.py names a place on this machine",
    }


def test_tags_as_pip_names_them() -> None:
    assert kind("numpy-2.2.6-cp310-cp310-manylinux_2_17_aarch64.manylinux2014_aarch64.whl").startswith("cp310-cp310-")
    assert kind("typer-0.29.2-py3-none-any.whl") == "any"
    assert normal("Llama_cpp.python") == "llama-cpp-python"
    assert PLATFORMS[0] == "manylinux_2_28_aarch64" and "manylinux_2_17_aarch64" in PLATFORMS


ONLY_A_UES = """
import sys
from importlib.metadata import packages_distributions, requires
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as canonical

def brought(name, extra, known):
    for line in requires(name) or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            found = canonical(requirement.name)
            if found not in known:
                known.add(found)
                try:
                    brought(found, "", known)
                except ModuleNotFoundError:
                    pass  # not installed here
    return known

kept = brought("wireless-sd-testbed", "ue", {"wireless-sd-testbed", "packaging"})

class Missing:
    places = packages_distributions()
    def find_spec(self, name, path=None, target=None):
        owners = self.places.get(name.partition(".")[0])
        if owners and not kept & {canonical(owner) for owner in owners}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from testbed.cli.main import run
sys.argv = ["testbed", *sys.argv[1:]]
run()
"""
"""Runs the command line as it runs where only the extra `ue` is installed."""


@pytest.mark.parametrize("words", [["ue", "run", "--help"], ["models", "path", "--json"]])
def test_the_command_line_runs_with_the_packages_of_a_ue(words: list[str]) -> None:
    call = [sys.executable, "-c", ONLY_A_UES, *words]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def find_interpreter(python: str) -> str | None:
    """A Python of this version: on the path, or of pyenv, whose shims fail for versions that are not switched on."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{python}"), *map(str, kept.glob(f"{python}.*/bin/python"))]
    for name in filter(None, candidates):
        if subprocess.run([name, "--version"], capture_output=True, check=False).returncode == 0:
            return name
    return None


# ---------------------------------------------------------------- minutes: packages are fetched and installed


@pytest.mark.long
def test_everything_but_llama_cpp_comes_as_a_wheel_for_arm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "--out", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["source_only"] == ["llama-cpp-python"]
    by_python = {python: {row["name"] for row in told["packages"] if row["python"] == python} for python in PYTHONS}
    for names in by_python.values():
        assert {"pyzmq", "msgspec", "numpy", "pyarrow", "tokenizers", "llama-cpp-python"} <= names
        assert not names & set(NEVER)


@pytest.mark.long
@pytest.mark.parametrize("python", PYTHONS)
def test_a_ue_runs_from_the_wheel_alone(python: str, wheel: Path, tmp_path: Path) -> None:
    interpreter = find_interpreter(python)
    if interpreter is None:
        pytest.skip(f"no Python {python} here")
    venv, binaries = tmp_path / "venv", tmp_path / "venv" / "bin"
    built = ROOT / ".venv" / "wheels"
    environ = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def call(*command: str) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    call(interpreter, "-m", "venv", str(venv))
    pip = (str(binaries / "python"), "-m", "pip", "install", "--quiet", "--constraint", str(CONSTRAINTS))
    call(*pip, "--find-links", str(built), f"{wheel}[ue]")
    for name in NEVER:
        call(str(binaries / "python"), "-c", f"import importlib.util as u; assert u.find_spec({name!r}) is None")
    findings = json.loads(call(str(binaries / "testbed"), "doctor", "--json"))["findings"]
    by_name = {finding["name"]: finding for finding in findings}
    assert by_name["llama.cpp drafter"]["ok"] and not by_name["transformers engine"]["ok"]
    assert "--drafter" in call(str(binaries / "testbed"), "ue", "run", "--help")
    assert str(venv) in json.loads(call(str(binaries / "testbed"), "models", "path", "--json"))["drafter"]
