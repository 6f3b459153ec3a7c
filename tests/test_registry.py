"""Registries: entries by name, unknown names, and entries of installed packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from testbed.errors import BadInput
from testbed.registry import Registry


class Part(NamedTuple):
    kind: str
    about: str = "a part"


def test_entries_are_found_in_the_order_in_which_they_were_added() -> None:
    parts = Registry("part", "testbed.nothing", Part("b"), Part("a"))
    parts.add(Part("c"))
    assert list(parts) == ["b", "a", "c"] and len(parts) == 3
    assert parts.choose("a") is parts["a"]
    assert "d" not in parts


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    parts = Registry("part", "testbed.nothing", Part("a"), Part("b"))
    with pytest.raises(BadInput, match=r"^unknown part 'c'; known: a, b$"):
        parts.choose("c")


def test_a_name_is_added_once() -> None:
    parts = Registry("part", "testbed.nothing", Part("a"))
    with pytest.raises(BadInput, match=r"^there is a part 'a' already$"):
        parts.add(Part("a"))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path that looks like an installed package with an entry point."""
    (tmp_path / "outside_part.py").write_text(
        "from typing import NamedTuple\n"
        "class Part(NamedTuple):\n    kind: str\n    about: str = ''\n"
        "ENTRY = Part('outside')\n"
    )
    info = tmp_path / "outside_part-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-part\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[testbed.parts]\noutside = outside_part:ENTRY\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("outside_part", None)


def test_an_installed_package_adds_an_entry(package: Path) -> None:
    parts: Registry[Part] = Registry("part", "testbed.parts", Part("inside"))
    assert list(parts) == ["inside", "outside"]
    assert Registry("part", "testbed.parts", Part("inside"))["outside"].kind == "outside"


def test_an_entry_point_that_cannot_be_loaded_is_named(package: Path) -> None:
    (package / "outside_part.py").write_text("raise RuntimeError('broken on purpose')\n")
    parts: Registry[Part] = Registry("part", "testbed.parts", Part("inside"))
    assert list(parts) == ["inside"]
    with pytest.raises(BadInput, match=r"cannot load the part 'outside' from outside_part:ENTRY: broken on purpose"):
        parts.choose("outside")


def test_an_entry_point_of_the_wrong_class_is_named(package: Path) -> None:
    (package / "outside_part.py").write_text("class ENTRY:\n    kind = 'outside'\n    about = ''\n")
    parts: Registry[Part] = Registry("part", "testbed.parts", Part("inside"), of=Part)
    assert list(parts) == ["inside"]
    with pytest.raises(
        BadInput, match=r"cannot load the part 'outside' .*: it names <class .*, not an instance of Part"
    ):
        parts.choose("outside")


def test_an_entry_point_that_takes_a_built_in_name_is_left_out(package: Path) -> None:
    (package / "outside_part.py").write_text("from tests.test_registry import Part\nENTRY = Part('inside', 'other')\n")
    parts: Registry[Part] = Registry("part", "testbed.parts", Part("inside"), of=Part)
    assert [entry.about for entry in parts.values()] == ["a part"]


def test_a_package_that_ends_the_process_on_import_is_left_out(package: Path) -> None:
    (package / "outside_part.py").write_text("raise SystemExit('leaving')\n")
    parts: Registry[Part] = Registry("part", "testbed.parts", Part("inside"))
    with pytest.raises(BadInput, match="leaving"):
        parts.choose("outside")
