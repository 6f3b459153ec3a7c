"""The audit of what is installed: it is what is pinned, and what differs is found."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import sys
from pathlib import Path

import pytest

from scripts import audit

PINS = """# a comment
alpha==1.0
beta-two==2.0; python_version < '3.0'
beta-two==2.1; python_version >= '3.0'
"""


def install(site: Path, name: str, version: str, *more: str, body: bytes = b"x = 1\n") -> Path:
    """A package as pip leaves it; returns its one module."""
    module, info = site / f"{name}.py", site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    module.write_bytes(body)
    metadata = info / "METADATA"
    metadata.write_text("\n".join(["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *more]))
    lines = [f"{info.name}/RECORD,,"]
    for file in (module, metadata):
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).rstrip(b"=").decode()
        lines.append(f"{file.relative_to(site)},sha256={digest},")
    (info / "RECORD").write_text("\n".join(lines))
    return module


def test_what_is_installed_is_what_is_pinned(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main([]) == 0
    table = capsys.readouterr().out
    assert "no advisory was looked up" in table
    assert any(line.startswith("numpy ") and "testbed" in line for line in table.splitlines())
    assert audit.main(["--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    known = {p["name"]: p for p in document["packages"]}
    assert "BSD-3-Clause" in known["pyzmq"]["licence"] and known["pyzmq"]["needed_by"][0] == "testbed"
    assert document["wrong"] == [] and document["advisories"] is None


def test_what_differs_is_found(tmp_path: Path) -> None:
    install(tmp_path, "alpha", "1.0", "Requires-Dist: Beta.Two", "Requires-Dist: gamma; extra == 'x'")
    install(tmp_path, "beta_two", "2.0+local", "License: MIT")
    install(tmp_path, "gamma", "3.0", "Classifier: License :: OSI Approved :: MIT License")
    packages = audit.read_packages(importlib.metadata.distributions(path=[str(tmp_path)]))
    assert [(p.name, p.licence, p.needed_by) for p in packages] == [
        ("alpha", audit.UNKNOWN, ()), ("beta-two", "MIT", ("alpha",)), ("gamma", "MIT License", ()),
    ]  # fmt: skip
    pins = audit.read_pins(PINS)
    assert [pin.here for pin in pins] == [True, False, True]
    assert audit.differences(packages, pins) == [
        "beta-two 2.0+local is installed, 2.1 is pinned", "gamma 3.0 is installed and not pinned",
    ]  # fmt: skip


def test_files_that_were_changed_or_are_gone_are_found(tmp_path: Path) -> None:
    module = install(tmp_path, "alpha", "1.0")
    (distribution,) = importlib.metadata.distributions(path=[str(tmp_path)])
    assert list(audit.changed_files(distribution)) == []
    module.write_bytes(b"x = 2\n")
    assert list(audit.changed_files(distribution)) == ["alpha: alpha.py is not what its wheel recorded"]
    module.unlink()
    assert ["cannot be read" in problem for problem in audit.changed_files(distribution)] == [True]


def test_files_that_belong_to_no_package_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line of a `.pth` file that begins with `import` runs whenever Python starts."""
    site, tag = tmp_path / "lib/site-packages", sys.implementation.cache_tag
    install(site, "alpha", "1.0")
    ours = (
        "pyvenv.cfg",
        "bin/python3",
        f"{site}/__pycache__/alpha.{tag}.pyc",
        f"{site}/__pycache__/alpha.{tag}.opt-1.pyc",
    )
    _touch(tmp_path, *ours)
    (tmp_path / "lib64").symlink_to("lib")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(audit.sysconfig, "get_path", lambda _: str(site))
    assert audit.main(["--files"]) == 1
    assert capsys.readouterr().err == "audit: alpha 1.0 is installed and not pinned\n"
    strays = (f"__pycache__/beta.{tag}.pyc", "alpha.pyc", "planted.pth", "unhashed.py")
    _touch(site, *strays)
    _touch(tmp_path, "bin/pip")
    (site / "zlinked").symlink_to("__pycache__")
    with (site / "alpha-1.0.dist-info/RECORD").open("a") as record:
        record.write("\nunhashed.py,,\n")
    assert audit.main(["--files"]) == 1
    found = ["bin/pip", *(f"lib/site-packages/{name}" for name in (*strays, "zlinked"))]
    assert capsys.readouterr().err.splitlines()[1:] == [f"audit: {name} belongs to no package" for name in found]


def _touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()


def test_pins_without_a_hash_are_found() -> None:
    pins = audit.read_pins(PINS)
    locked = {"alpha==1.0": {"00"}, "alpha==1.0+cpu": {"11"}, "beta-two==2.1": set[str](), "gamma==3.0": {"22"}}
    assert audit.unlocked(pins, locked) == [
        "beta-two==2.0 is pinned and has no hash",
        "beta-two==2.1 is pinned and has no hash",
        "gamma==3.0 has hashes and is not pinned",
    ]


def test_hashes_are_compared_with_the_index() -> None:
    locked = {"alpha==1.0": {"00", "01"}, "beta==2.0": {"10"}, "gamma==3.0": {"20"}}
    published = {"alpha==1.0": {"00"}, "beta==2.0": {"10", "11"}, "gamma==3.0": {"21"}}
    assert audit.other_hashes(locked, published) == [
        "beta==2.0: the index has 1 files whose hashes are not locked (make lock)",
        "gamma==3.0: the index has none of the files whose hashes are locked",
    ]
