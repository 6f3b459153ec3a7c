"""Extraction of final answers."""

from __future__ import annotations

import pytest

from testbed.models.scoring import final_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("48/2=24 clips.\n#### 72", "72"),
        ("#### 72\n", "72"),
        ("####72", "72"),
        ("#### -5", "-5"),
        ("#### $18", "18"),
        ("#### 1,234,567", "1234567"),
        ("#### 3.50", "3.5"),
        ("#### -$5", "-5"),
        ("#### $-5", "-5"),
        ("#### .50", "0.5"),
        ("#### 12.", "12"),
        ("#### 3 #### none", "3"),
        ("#### 2.0", "2"),
        ("#### 100", "100"),
        ("#### 10.00", "10"),
        ("#### 0", "0"),
        ("#### 5 apples", "5"),
        ("#### 5.", "5"),
        ("first #### 3 and then #### 4", "4"),
        ("So the answer is 72.", None),
        ("#### none", None),
        ("### 5", None),
        ("", None),
    ],
)
def test_the_number_after_the_last_mark(text: str, number: str | None) -> None:
    assert final_number(text) == number
