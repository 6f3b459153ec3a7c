"""All runs of a load ramp, each saved as soon as it ends."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from testbed.experiments.latency.ramp.climb import RampRun, Told
from testbed.experiments.latency.ramp.config import RampConfig
from testbed.experiments.latency.ramp.real import RealRamp
from testbed.experiments.latency.ramp.virtual import VirtualRamp
from testbed.experiments.results.claims import claimed, kept


def measure(config: RampConfig, out: Path, told: Told) -> list[RampRun]:
    """Carry out all unfinished runs; every run is saved, so that a second call resumes.

    Raises:
        BadInput: an invalid configuration, or a directory of another ramp.
    """
    config.check_kind()
    with claimed(config, out, "ramp"):
        world = VirtualRamp(config, told) if config.kind == "virtual" else RealRamp(config, out, told)
        loads = kept(out / "loads.json", list[float], lambda: list(config.loads) or world.loads())
        told(f"loads {', '.join(f'{load:.3g}' for load in loads)} requests/s")

        def run(policy: str, seed: int) -> RampRun:
            found = world.run(policy, seed, loads)
            late = "" if found.late is None else f"; passes exceeded the pace by {found.late:.1%}"
            told(f"seed {seed}, window {policy}: {np.mean([a.latency_s for a in found.answered]):.3f} s{late}")
            return found

        return [
            kept(out / f"run-{policy}-seed{seed}.json", RampRun, partial(run, policy, seed))
            for seed in config.seeds
            for policy in config.policies
        ]
