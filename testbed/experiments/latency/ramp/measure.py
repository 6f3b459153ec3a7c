"""All runs of a load ramp, each saved as soon as it ends."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from testbed.errors import BadInput
from testbed.experiments.latency.ramp.climb import RampRun, Told, counts
from testbed.experiments.latency.ramp.config import RampConfig
from testbed.experiments.latency.ramp.real import RealRamp
from testbed.experiments.latency.ramp.virtual import VirtualRamp
from testbed.experiments.results.claims import Quantity, claimed, kept


def measure(config: RampConfig, out: Path, told: Told) -> list[RampRun]:
    """Carry out all unfinished runs; every run is saved, so that a second call resumes.

    Raises:
        BadInput: an invalid configuration, a directory of another ramp, or a file of another run in it.
    """
    config.check_kind()
    with claimed(config, out, "ramp"):
        world = VirtualRamp(config, told) if config.kind == "virtual" else RealRamp(config, out, told)
        loads = kept(out / "loads.json", list[Quantity], lambda: list(config.loads) or world.loads())
        told(f"loads {', '.join(f'{load:.3g}' for load in loads)} requests/s")

        def run(policy: str, seed: int) -> RampRun:
            found = world.run(policy, seed, loads)
            late = "" if found.late is None else f"; passes exceeded the pace by {found.late:.1%}"
            told(f"seed {seed}, window {policy}: {np.mean([a.latency_s for a in found.answered]):.3f} s{late}")
            return found

        steps = np.repeat(np.arange(len(loads)), counts(config, loads)).tolist()

        def one(policy: str, seed: int) -> RampRun:
            path = out / f"run-{policy}-seed{seed}.json"
            found = kept(path, RampRun, partial(run, policy, seed))
            of = found.policy, found.seed, found.loads, [each.step for each in found.answered]
            if of != (policy, seed, loads, steps):
                raise BadInput(f"{path} is that of another run; remove it, and its result is computed again")
            return found

        return [one(policy, seed) for seed in config.seeds for policy in config.policies]
