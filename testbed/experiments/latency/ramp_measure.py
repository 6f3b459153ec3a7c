"""All runs of a load ramp, each kept as soon as it is there."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from testbed.experiments.latency.ramp import RampConfig, RampRun, Told
from testbed.experiments.latency.ramp_real import RealRamp
from testbed.experiments.latency.ramp_virtual import VirtualRamp
from testbed.experiments.results.claims import claim
from testbed.files import whole_file


def measure(config: RampConfig, out: Path, told: Told) -> list[RampRun]:
    """Run what is not there yet; every run is kept, so that a second call goes on where the first stopped.

    Raises:
        BadInput: what cannot be run, or a directory of another ramp.
    """
    claim(config, out, "ramp")
    world = VirtualRamp(config, told) if config.kind == "virtual" else RealRamp(config, out, told)
    path = out / "loads.json"
    if not path.exists():
        with whole_file(path) as part:
            part.write_bytes(msgspec.json.encode(list(config.loads) or world.loads()))
    loads = msgspec.json.decode(path.read_bytes(), type=list[float])
    told(f"loads {', '.join(f'{load:.3g}' for load in loads)} requests/s")
    found = []
    for seed in config.seeds:
        for policy in config.policies:
            path = out / f"run-{policy}-seed{seed}.json"
            if not path.exists():
                run = world.run(policy, seed, loads)
                late = "" if run.late is None else f"; passes exceeded the pace by {run.late:.1%}"
                told(f"seed {seed}, window {policy}: {np.mean([a.latency_s for a in run.answered]):.3f} s{late}")
                with whole_file(path) as part:
                    part.write_bytes(msgspec.json.encode(run))
            found.append(msgspec.json.decode(path.read_bytes(), type=RampRun))
    return found
