"""`testbed channel radio`: radio files for cells."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.options import AsJson, Force, configured, refuse_to_overwrite
from testbed.cli.output import note, print_json
from testbed.experiments.links.tr38901 import RadioFileOptions


@configured(RadioFileOptions)
def radio(
    config: RadioFileOptions,
    scenario: Annotated[str, typer.Argument(help="umi, uma, rma, inh or inf.")],
    out: Annotated[Path, typer.Option(help="File to write, .npz.")],
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Compute a radio file for `testbed cell run`: SNRs of UEs by the channel models of 3GPP TR 38.901.

    Needs Sionna, the extra `sionna`. One antenna at each end, no interference.

    Examples:

        testbed channel radio umi --ues 8 --seconds 20 --out umi.npz

        testbed channel radio inf --distance-m 5 60 --speed-mps 1 --seed 3 --out hall.npz
    """
    from testbed.experiments.links.tr38901 import radio_file

    refuse_to_overwrite([out], force)
    made = radio_file(scenario, config)
    made.save(out)
    row = {
        "file": str(out), "about": made.about, "ues": len(made.uplink_db), "steps": made.uplink_db.shape[1],
        "uplink_db": float(made.uplink_db.mean()), "downlink_db": float(made.downlink_db.mean()),
    }  # fmt: skip
    if as_json:
        print_json(row)
    else:
        print(f"{row['ues']} UEs, {row['steps']} steps, mean SNR {row['uplink_db']:.1f} dB up, "
              f"{row['downlink_db']:.1f} dB down")  # fmt: skip
        note(f"wrote {out}")
