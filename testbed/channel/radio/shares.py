"""Reader of bandwidth shares, in the JSON format of `testbed optim bandwidth` and `plan`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testbed.errors import BadInput
from testbed.files import file_bytes, json_values


def read_shares(path: Path) -> tuple[float, ...]:
    """[K] bandwidth shares w_k of the UEs.

    Raises:
        BadInput: a file that cannot be read, or shares that are not positive or add up to more than 1.
    """
    shares = _numbers(path, "bandwidth", _document(path).get("bandwidth"))
    if sum(shares) > 1 + 1e-9:
        raise BadInput(f"the shares in {path} add up to {sum(shares):.9g}, more than 1")
    return shares


def uplinks_mbps(path: Path, uplink_mbps: float | None = None) -> tuple[float, ...]:
    """[K] uplink rates of the UEs.

    Args:
        uplink_mbps: rate of the whole uplink, of which each UE gets its share; None: the file's `rates_mbps`, which
            also depend on every UE's channel.

    Raises:
        BadInput: as `read_shares`, or neither a rate nor rates in the file.
    """
    shares = read_shares(path)
    if uplink_mbps is not None:
        return tuple(share * uplink_mbps for share in shares)
    rates = _document(path).get("rates_mbps")
    if rates is None:
        raise BadInput(f"{path} has no rates_mbps; give uplink_mbps, the rate of the whole uplink")
    found = _numbers(path, "rates_mbps", rates)
    if len(found) != len(shares):
        raise BadInput(f"{path} has {len(shares)} shares and {len(found)} rates")
    return found


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json_values(file_bytes(path))
    except (OSError, ValueError) as exc:
        raise BadInput(f"cannot read shares from {path}: {exc}") from exc
    if not isinstance(document, dict):
        raise BadInput(f"{path} holds no shares; write it with `testbed optim bandwidth --json`")
    return document


def _numbers(path: Path, name: str, values: Any) -> tuple[float, ...]:
    good = isinstance(values, Sequence) and not isinstance(values, str) and len(values) > 0
    if not good or not all(_positive(value) for value in values):
        raise BadInput(f"{name} in {path} must be positive numbers, one for each UE")
    return tuple(float(value) for value in values)


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
