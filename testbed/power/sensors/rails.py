"""Rails that make up a device's total power; rails fed by other rails must not be counted twice."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from testbed.errors import SensorError

WHOLE = (
    ("VDD_IN",),  # Orin Nano, Orin NX, Xavier NX: the module's input
    ("POM_5V_IN",),  # Nano: the board's input
    ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"),  # AGX Orin: the module has no input rail
)
"""Sets of rails that make up a Jetson module; all other rails are fed by one of these."""


def whole(rails: Collection[str]) -> tuple[str, ...]:
    """Rails that add up to the whole device: a set of `WHOLE`, else all."""
    return next((known for known in WHOLE if set(known) <= set(rails)), tuple(rails))


def total_w(rails: Mapping[str, float], names: Collection[str]) -> float:
    """Power of the whole device [W].

    Args:
        names: rails that make up the total.

    Raises:
        SensorError: one of these rails is missing.
    """
    missing = [name for name in names if name not in rails]
    if missing:
        raise SensorError(f"no reading of {', '.join(missing)}")
    return sum(rails[name] for name in names)
