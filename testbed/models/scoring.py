"""Reading a final answer out of an output."""

from __future__ import annotations

import re


def final_number(text: str) -> str | None:
    """What stands after the last ``####`` (GSM8K's mark), commas and trailing zeros of a fraction left out; None
    where there is no such number.
    """
    found = re.findall(r"####\s*\$?(-?[\d,]*\.?\d+)", text)
    if not found:
        return None
    number = str(found[-1]).replace(",", "")
    return number.rstrip("0").rstrip(".") if "." in number else number
