"""Extraction of the final answer from an output."""

from __future__ import annotations

import re


def final_number(text: str) -> str | None:
    """Number after the last ``####`` (GSM8K's marker), without commas and trailing zeros of a fraction; None without
    such a number.
    """
    found = re.findall(r"####\s*(-?)\$?(-?)([\d,]*)(\.\d+)?", text)
    numbers = [(before or after, whole.replace(",", ""), part) for before, after, whole, part in found if whole or part]
    if not numbers:
        return None
    sign, whole, part = numbers[-1]
    return f"{sign}{whole or 0}{part.rstrip('0').rstrip('.')}"
