"""Coefficients by name: profiles, files, and what is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.errors import BadInput
from testbed.experiments.coefficients import coefficients

FOUND = {"a": 1e-4, "b_compute": 2e-9, "b_read": 3e-6, "c": 0.02, "r2": 0.99}


def test_profiles_and_files(tmp_path: Path) -> None:
    assert coefficients("probe") is None
    printed = coefficients("a100-qwen3-32b-appendix")
    assert printed is not None and printed.values == (3.314e-5, 3.450e-8, 4.620e-6, 1.486e-2)
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(FOUND))
    read = coefficients(str(path))
    assert read is not None and read.values == (1e-4, 2e-9, 3e-6, 0.02)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "line 1: no JSON"),
        ("[1]", "no JSON object"),
        ('{"a": 1}', "has no b_compute, b_read, c"),
        ("", "is empty"),
    ],
)
def test_files_that_are_none(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "fit.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=why):
        coefficients(str(path))
