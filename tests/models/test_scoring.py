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
        ("#### 3/4", "0.75"),
        ("#### 1/3", "1/3"),
        ("#### 1e3", "1000"),
        ("#### 1 000", "1000"),
        ("#### 007", "7"),
        ("#### -0", "0"),
        ("#### **12**", "12"),
        ("#### $\\boxed{12}$", "12"),
        ("#### \u22123", "-3"),
        ("#### 18 - the total", "18"),
        ("#### 5\n####", "5"),
        ("#### 18 / 2 = 9", None),
        ("#### 10:30", None),
        ("#### 10-20", None),
        ("#### 1/0", None),
        ("#### 1.2.3", None),
        ("#### 1e999999", None),
        ("So the answer is 72.", None),
        ("#### none", None),
        ("### 5", None),
        ("", None),
    ],
)
def test_the_number_after_the_last_mark(text: str, number: str | None) -> None:
    assert final_number(text) == number
