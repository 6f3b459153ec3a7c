"""NVIDIA GPUs, read with NVML (package nvidia-ml-py).

NVML API reference: `nvmlDeviceGetTotalEnergyConsumption` counts mJ since the driver was loaded (Volta and later);
older GPUs use `nvmlDeviceGetPowerUsage` [mW]; the clocks' event reasons are a bit mask.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from typing import Any

from testbed.errors import SensorError
from testbed.power.reading import Reading, joined

REASONS = {0x4: "power-cap", 0x8: "hardware-slowdown", 0x20: "thermal", 0x40: "thermal", 0x80: "power-brake"}
"""Bits of the clocks' event reasons that slow down a busy GPU."""
CELSIUS = 0
"""NVML_TEMPERATURE_GPU."""
LEAST_S = 1e-3


class Nvml:
    """Power source that reads all GPUs of the machine.

    Args:
        library: replacement for pynvml, for tests.

    Raises:
        SensorError: no driver, no GPU, or nvidia-ml-py is missing.
    """

    name = "nvml"
    period_s = 0.1
    total = "sum of the GPUs"

    def __init__(self, library: Any = None) -> None:
        self._nvml = library if library is not None else _library()
        try:
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
            self._gpus = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        except self._nvml.NVMLError as exc:
            raise SensorError(f"NVML does not start: {exc}") from exc
        if not self._gpus:
            raise SensorError("NVML finds no GPU")
        try:
            self._before = self._counted()
            self.mean = True
        except self._nvml.NVMLError:
            self.mean = False

    def read(self) -> Reading:
        """See `PowerSource`."""
        try:
            now_s, rails = self._means() if self.mean else self._moments()
            temps = [self._nvml.nvmlDeviceGetTemperature(gpu, CELSIUS) for gpu in self._gpus]
            return Reading(now_s, rails, sum(rails.values()), float(max(temps)), self._throttled())
        except self._nvml.NVMLError as exc:
            raise SensorError(f"NVML: {exc}") from exc

    def close(self) -> None:
        """Shut NVML down."""
        self._nvml.nvmlShutdown()

    def _counted(self) -> tuple[float, list[int]]:
        """Time, and energy counters of all GPUs [mJ]."""
        return time.perf_counter(), [self._nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) for gpu in self._gpus]

    def _means(self) -> tuple[float, dict[str, float]]:
        (then_s, old), (now_s, new) = self._before, self._counted()
        if now_s - then_s < LEAST_S:
            raise SensorError(f"NVML was read {now_s - then_s:g} s ago")
        self._before = (now_s, new)
        return now_s, {
            f"gpu{i}": (b - a) / 1e3 / (now_s - then_s) for i, (a, b) in enumerate(zip(old, new, strict=True))
        }

    def _moments(self) -> tuple[float, dict[str, float]]:
        watts = [self._nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3 for gpu in self._gpus]
        return time.perf_counter(), {f"gpu{i}": power_w for i, power_w in enumerate(watts)}

    def _throttled(self) -> str | None:
        """Reasons over all GPUs; None if unknown. The second function is for older drivers and packages."""
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            with contextlib.suppress(AttributeError, self._nvml.NVMLError):
                bits = [getattr(self._nvml, name)(gpu) for gpu in self._gpus]
                return joined(reason for bit, reason in REASONS.items() if any(found & bit for found in bits))
        return None


def _library() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ModuleNotFoundError as exc:
        raise SensorError("NVML needs the package nvidia-ml-py: pip install nvidia-ml-py") from exc
