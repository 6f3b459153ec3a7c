"""Radio files: SINRs of UEs over time, computed ahead; `.npz` files that numpy reads.

| array | shape | content |
|---|---|---|
| `uplink_db`, `downlink_db` | [UEs, steps] | SINR over the whole bandwidth [dB], half precision |
| `step_s` | [] | duration of a step [s] |
| `bandwidth_hz` | [] | bandwidth for which they hold [Hz]; files without it hold for that of the cell |
| `about` | [] | how it was made, one line |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from testbed.assets.bundled_files import find
from testbed.channel.radio.adaptation import Adaptation, AdaptedAir, SinrSeries
from testbed.channel.radio.model import RadioUe, Spectrum
from testbed.errors import BadInput
from testbed.files import whole_file
from testbed.options import Config, option
from testbed.unpacked.arrays import npz_arrays

MOST_UES, MOST_STEPS = 10_000, 2_000_000


@dataclass(frozen=True)
class RadioFile:
    """Content of a radio file.

    Raises:
        BadInput: arrays of other shapes, or values that are not finite.
    """

    uplink_db: NDArray[np.float16]
    downlink_db: NDArray[np.float16]
    step_s: float
    about: str
    bandwidth_hz: float | None = None
    """None: that of the cell, whichever it is."""

    def __post_init__(self) -> None:
        shape = self.uplink_db.shape
        if len(shape) != 2 or not 0 < shape[0] <= MOST_UES or not 0 < shape[1] <= MOST_STEPS:
            raise BadInput(f"SINRs need the shape [UEs, steps], not {list(shape)}")
        if self.downlink_db.shape != shape:
            raise BadInput(f"uplink {list(shape)} and downlink {list(self.downlink_db.shape)} differ in shape")
        if not (np.isfinite(self.uplink_db).all() and np.isfinite(self.downlink_db).all()):
            raise BadInput("SINRs must be finite")
        if not 1e-5 <= self.step_s <= 3600:
            raise BadInput(f"a step must last 1e-5..3600 s, not {self.step_s:g}")
        if self.bandwidth_hz is not None and not 1 <= self.bandwidth_hz <= 1e12:
            raise BadInput(f"a bandwidth lies in 1..1e12 Hz, not {self.bandwidth_hz:g}")

    def spread_db(self, bandwidth_hz: float) -> float:
        """What SNRs change by where the same power is spread over another bandwidth; 0 where theirs is unknown."""
        return 0.0 if self.bandwidth_hz is None else 10 * math.log10(self.bandwidth_hz / bandwidth_hz)

    def save(self, path: Path) -> None:
        """Write the file, in one step."""
        with whole_file(path) as part, part.open("wb") as file:
            known: dict[str, Any] = {} if self.bandwidth_hz is None else {"bandwidth_hz": self.bandwidth_hz}
            np.savez_compressed(
                file, uplink_db=self.uplink_db, downlink_db=self.downlink_db, step_s=self.step_s, about=self.about,
                **known,
            )  # fmt: skip


def read_radio_file(path: Path) -> RadioFile:
    """Read a radio file.

    Raises:
        BadInput: unreadable, or no radio file.
    """
    try:
        found = npz_arrays(path)
        up, down = (_half(found[name], found["uplink_db"].shape) for name in ("uplink_db", "downlink_db"))
        bandwidth_hz = float(found["bandwidth_hz"]) if "bandwidth_hz" in found else None
        return RadioFile(up, down, float(found["step_s"]), str(found["about"]), bandwidth_hz)
    except (KeyError, ValueError, TypeError, BadInput) as exc:
        raise BadInput(f"{path} is no radio file: {exc}") from exc


def _half(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.float16]:
    """SINRs in half precision.

    Raises:
        ValueError: another shape, no real numbers, or such as have no half precision.
    """
    if values.dtype.kind not in "fiu" or values.shape != shape:
        raise ValueError(
            f"SINRs need numbers {list(shape)} for both directions, not {values.dtype} {list(values.shape)}"
        )
    if values.size and not np.abs(values).max() <= np.finfo(np.float16).max:
        raise ValueError("SINRs are too large, or no numbers")
    return values.astype(np.float16)


class FileSource(Config, frozen=True, tag="radio-file", tag_field="kind"):
    """SINRs of a radio file: UE n takes row n, and the first again after the last; they repeat at their ends. In a cell
    of another bandwidth than the file's, a UE has the same power.
    """

    file: Annotated[str, option("Radio file, or the name of a bundled one.")]
    offset_db: Annotated[
        float, option("Added to every SINR: other powers, or interference.", least=-100, most=100, unit="dB")
    ] = 0.0
    adaptation: Adaptation = Adaptation()

    def air(self, ues: Sequence[RadioUe], cell: Spectrum) -> AdaptedAir:
        """The channels of UEs.

        Raises:
            BadInput: an unreadable file.
        """
        found = read_radio_file(find("radio files", self.file))
        rows, offset_db = len(found.uplink_db), self.offset_db + found.spread_db(cell.bandwidth_hz)

        def series(values: NDArray[np.float16], ue: int) -> SinrSeries:
            return SinrSeries(values[ue % rows].astype(np.float32) + offset_db, found.step_s)

        ways = [(series(found.uplink_db, ue), series(found.downlink_db, ue)) for ue in range(len(ues))]
        return AdaptedAir(self.adaptation, ways, cell.bler)


def snr_db(gain: NDArray[np.floating], power_dbm: float, noise_dbm: float) -> NDArray[np.float16]:
    """[...] SNRs that carry as much as the subcarriers [..., n] do together: log2(1 + SNR) is their mean.

    Args:
        gain: [..., n] linear power gains.
    """
    snr = gain * 10 ** ((power_dbm - noise_dbm) / 10)
    mean = np.log2(1 + snr).mean(axis=-1)
    return np.asarray(10 * np.log10(np.maximum(2**mean - 1, 10 ** (-100 / 10))), np.float16)


def noise_dbm(bandwidth_hz: float, figure_db: float) -> float:
    """Thermal noise of a receiver [dBm]."""
    return -174.0 + 10 * math.log10(bandwidth_hz) + figure_db
