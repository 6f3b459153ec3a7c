"""Which of a device's rails make the whole of it: some rails are fed by others, and may not be counted twice."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from testbed.errors import SensorError

WHOLE = (
    ("VDD_IN",),  # Orin Nano, Orin NX, Xavier NX: the module's input
    ("POM_5V_IN",),  # Nano: the board's input
    ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"),  # AGX Orin: the module has no input rail
)
"""Sets of rails that are a whole Jetson module; all that are not named there lie behind one of them."""


def whole(rails: Collection[str]) -> tuple[str, ...]:
    """The rails that add up to the whole device: one of `WHOLE`, else all."""
    return next((known for known in WHOLE if set(known) <= set(rails)), tuple(rails))


def total_w(rails: Mapping[str, float], names: Collection[str]) -> float:
    """Power of the whole device [W].

    Args:
        names: the rails that make it up.

    Raises:
        SensorError: one of them is missing; the others would pass for the whole.
    """
    missing = [name for name in names if name not in rails]
    if missing:
        raise SensorError(f"no reading of {', '.join(missing)}")
    return sum(rails[name] for name in names)
