"""Write the block error rates and reference values of the radio cell, computed by Sionna.

    python -m scripts.radio_tables

Needs the extra `sionna`. Two files are written: the table of `testbed/channel/radio/bler.py`, and what tests compare
the cell's link adaptation and scheduler with. `tests/channel/radio/test_sionna.py` compares both with Sionna itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sionna.phy.nr.utils import decode_mcs_index
from sionna.sys import InnerLoopLinkAdaptation, PHYAbstraction
from sionna.sys.scheduling import PFSchedulerSUMIMO

ROOT = Path(__file__).resolve().parents[1]
TABLE, REFERENCE = ROOT / "testbed/channel/radio/bler.npz", ROOT / "tests/channel/radio/sionna.json"
CODE_BLOCK_BITS = 2000
"""The largest code block that Sionna's tables hold; it uses the same curves for larger ones."""
PUSCH, PDSCH = 0, 1
BITS = 4000
"""Rough size of the transport blocks that are compared: one code block."""


def main() -> None:
    """Write both files."""
    arrays, found = computed()
    np.savez_compressed(TABLE, **arrays)
    REFERENCE.write_text(json.dumps(found) + "\n")


def computed() -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays of the table, and the reference values."""
    physical = PHYAbstraction()
    arrays: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for name, category in (("uplink", PUSCH), ("downlink", PDSCH)):
        sinr_db, bler, rates = curves(physical, category)
        arrays |= {f"{name}_bler": bler.astype(np.float32), f"{name}_bits_per_symbol": rates}
        arrays["sinr_db"] = sinr_db
        found[name] = adaptation(physical, category)
    found["proportional_fair"] = scheduled()
    return arrays, found


def curves(physical: PHYAbstraction, category: int) -> tuple[Any, Any, Any]:
    """SINRs [n] in dB, BLER [m, n] of code blocks, and bits per symbol [m] of the MCSs of 3GPP's table 1 that have
    curves.
    """
    sizes = np.asarray(physical._cbs_interp)
    table = physical.bler_table_interp.numpy()[category, 0, :, int(np.argmax(sizes >= CODE_BLOCK_BITS))]
    known = [mcs for mcs in range(table.shape[0]) if np.isfinite(table[mcs]).all()]
    pairs = [[float(x) for x in decode_mcs_index(mcs, 1, is_pusch=category == PUSCH)] for mcs in known]
    return np.round(physical._snr_dbs_interp, 1), table[known], np.array([bits * rate for bits, rate in pairs])


def adaptation(physical: PHYAbstraction, category: int) -> list[dict[str, float]]:
    """MCS, throughput (bits per symbol) and BLER of Sionna's inner loop at a target of 0.1."""
    inner, rows = InnerLoopLinkAdaptation(physical, bler_target=0.1), []
    for sinr_db in np.arange(-2.0, 20.01, 0.5):
        sinr = torch.tensor([10 ** (sinr_db / 10)], dtype=torch.float32)
        elements = torch.tensor([round(BITS / (0.75 * float(torch.log2(1 + sinr))))], dtype=torch.int32)
        kind = {"mcs_table_index": 1, "mcs_category": category}
        mcs = inner(sinr_eff=sinr, num_allocated_re=elements, **kind)
        *_, blocks_lost, blocks = physical(mcs, sinr_eff=sinr, num_allocated_re=elements, **kind)
        bits, rate = (float(x) for x in decode_mcs_index(int(mcs), 1, is_pusch=category == PUSCH))
        rows.append(
            {
                "sinr_db": float(sinr_db), "mcs": int(mcs), "bits_per_symbol": bits * rate,
                "block_bler": float(blocks), "transport_bler": float(blocks_lost),
            }
        )  # fmt: skip
    return rows


def scheduled() -> dict[str, Any]:
    """UEs that Sionna's proportional-fair scheduler chooses, given random rates [slots, UEs]."""
    rates = np.random.default_rng(1).uniform(0.2, 5, (400, 3)) * 20e3
    scheduler = PFSchedulerSUMIMO(3, 1, 1, precision="double")
    last, chosen = torch.zeros(3, dtype=torch.float64), []
    for row in rates:
        grants = scheduler(last, torch.tensor(row)[None, None, :])
        chosen.append(int(grants[0, 0, :, 0].to(int).argmax()))
        last = torch.zeros(3, dtype=torch.float64)
        last[chosen[-1]] = row[chosen[-1]]
    return {"seed": 1, "slots": 400, "ues": 3, "chosen": chosen}


if __name__ == "__main__":
    main()
