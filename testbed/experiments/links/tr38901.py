"""Radio files from the channel models of 3GPP TR 38.901, computed by Sionna."""

from __future__ import annotations

import math
from importlib.metadata import version
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from testbed.channel.radio.files import RadioFile, noise_dbm, snr_db
from testbed.errors import BadInput
from testbed.options import Config, option, resolved

NO_SIONNA = (
    "TR 38.901 needs Sionna, which make setup installs with Python 3.11 or later (EXTRAS=sionna alone), or pip: "
    "sionna-no-rt"
)
SUBCARRIERS = 16
"""Frequencies at which the channel is sampled, over the bandwidth."""
UES_AT_ONCE = 4
"""UEs that are computed together."""


class Surroundings(NamedTuple):
    """A scenario of TR 38.901."""

    about: str
    bs_m: float
    """Height of the BS."""
    ue_m: float
    indoor: bool = False


SCENARIOS = {
    "umi": Surroundings("urban micro, street canyon", 10.0, 1.5),
    "uma": Surroundings("urban macro", 25.0, 1.5),
    "rma": Surroundings("rural macro", 35.0, 1.5),
    "inh": Surroundings("indoor, open office", 3.0, 1.0, True),
    "inf": Surroundings("indoor factory, dense clutter, high BS (InF-DH)", 8.0, 1.5, True),
}


class RadioFileOptions(Config, frozen=True):
    """Configuration of `testbed channel radio`.

    Raises:
        BadInput: a value out of range, or distances out of order.
    """

    ues: Annotated[int, option("UEs.", least=1, most=1000)] = 8
    seconds: Annotated[float, option("Duration.", above=0, most=3600, unit="s")] = 20.0
    step_ms: Annotated[float, option("Duration of a step.", least=0.1, most=1000, unit="ms")] = 5.0
    distance_m: Annotated[tuple[float, float], option("Least and most distance from the BS.", unit="m")] = (20.0, 150.0)
    speed_mps: Annotated[float, option("Speed of the UEs.", least=0, most=300, unit="m/s")] = 1.4
    carrier_hz: Annotated[float, option("Carrier frequency.", least=5e8, most=1e11, unit="Hz")] = 3.5e9
    bandwidth_hz: Annotated[float, option("Bandwidth.", least=1e5, most=1e10, unit="Hz")] = 20e6
    uplink_dbm: Annotated[float, option("Transmit power of a UE.", least=-40, most=60, unit="dBm")] = 23.0
    downlink_dbm: Annotated[float, option("Transmit power of the BS.", least=-40, most=80, unit="dBm")] = 43.0
    duplex: Literal["fdd", "tdd"] = "tdd"
    seed: Annotated[int, option("Seed of the random numbers.", least=0)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        least_m, most_m = self.distance_m
        if not 1 <= least_m <= most_m <= 1e5:
            raise BadInput(f"distances need [least, most] in 1..1e5 m, not [{least_m:g}, {most_m:g}]")


def radio_file(scenario: str, config: RadioFileOptions) -> RadioFile:
    """Compute the SNRs of UEs in a scenario: one antenna at each end, no interference, outdoor UEs in `umi`, `uma` and
    `rma`; every UE moves straight ahead, and keeps its large-scale parameters.

    Under FDD the small-scale fading of both directions is independent.

    Raises:
        BadInput: an unknown scenario, or Sionna is not installed.
    """
    if scenario not in SCENARIOS:
        raise BadInput(f"unknown scenario {scenario!r}; known: {', '.join(SCENARIOS)}")
    try:
        import sionna.phy
        import torch
    except ImportError as exc:
        raise BadInput(NO_SIONNA) from exc
    sionna.phy.config.seed = config.seed
    torch.manual_seed(config.seed)
    places = _Places(config, SCENARIOS[scenario])
    up = _gains(scenario, config, places)
    down = up if config.duplex == "tdd" else _gains(scenario, config, places)
    text = ", ".join(f"{name} {value}" for name, value in resolved(config).items())
    about = f"{scenario}: {SCENARIOS[scenario].about}; TR 38.901 by Sionna {version('sionna-no-rt')}; {text}"
    return RadioFile(
        snr_db(up, config.uplink_dbm, noise_dbm(config.bandwidth_hz, 5.0)),
        snr_db(down, config.downlink_dbm, noise_dbm(config.bandwidth_hz, 9.0)),
        config.step_ms / 1e3,
        about,
        config.bandwidth_hz,
    )


class _Places:
    """Where UEs begin, and how they move: uniform over the ring, in random directions."""

    def __init__(self, config: RadioFileOptions, surroundings: Surroundings) -> None:
        rng, count = np.random.default_rng(config.seed), config.ues
        least_m, most_m = config.distance_m
        distance, angle = np.sqrt(rng.uniform(least_m**2, most_m**2, count)), rng.uniform(0, 2 * math.pi, count)
        heading = rng.uniform(0, 2 * math.pi, count)
        height, still = np.full(count, surroundings.ue_m), np.zeros(count)
        self.ue = np.stack([distance * np.cos(angle), distance * np.sin(angle), height], -1)
        self.velocity = config.speed_mps * np.stack([np.cos(heading), np.sin(heading), still], -1)
        self.bs = np.array([[0.0, 0.0, surroundings.bs_m]])


def _gains(scenario: str, config: RadioFileOptions, places: _Places) -> np.ndarray[Any, Any]:
    """[UEs, steps, subcarriers] power gains."""
    import torch
    from sionna.phy.channel import cir_to_ofdm_channel

    steps = math.ceil(config.seconds * 1e3 / config.step_ms - 1e-9)
    frequencies = torch.linspace(-0.5, 0.5, SUBCARRIERS + 1)[:-1] * config.bandwidth_hz
    found = []
    for first in range(0, config.ues, UES_AT_ONCE):
        some = slice(first, first + UES_AT_ONCE)
        model = _model(scenario, config.carrier_hz)
        ue, velocity, bs = (
            torch.tensor(value, dtype=torch.float32)[None]
            for value in (places.ue[some], places.velocity[some], places.bs)
        )
        inside = torch.full(ue.shape[:2], SCENARIOS[scenario].indoor)
        model.set_topology(ue, bs, torch.zeros_like(ue), torch.zeros_like(bs), velocity, inside)
        paths, delays = model(steps, 1e3 / config.step_ms)
        channel = cir_to_ofdm_channel(frequencies, paths, delays)
        found.append((channel.abs() ** 2)[0, 0, 0, :, 0].numpy())
    return np.concatenate(found)


def _model(scenario: str, carrier_hz: float) -> Any:
    """The channel model, with one omnidirectional antenna at each end."""
    from sionna.phy.channel import tr38901

    antenna = tr38901.PanelArray(
        num_rows_per_panel=1, num_cols_per_panel=1, polarization="single", polarization_type="V",
        antenna_pattern="omni", carrier_frequency=carrier_hz,
    )  # fmt: skip
    ends = {"carrier_frequency": carrier_hz, "ut_array": antenna, "bs_array": antenna, "direction": "uplink"}
    if scenario == "inf":
        return tr38901.InF(factory_scenario="DH", **ends)
    if scenario == "inh":
        return tr38901.InH(indoor_scenario="open", **ends)
    if scenario == "rma":
        return tr38901.RMa(**ends)
    return {"umi": tr38901.UMi, "uma": tr38901.UMa}[scenario](o2i_model="low", **ends)
