"""Pass-time coefficients (WISP eq. 19) by name: from a device profile, or a file written by `estimator fit --json`."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from testbed.channel.trace import read_text
from testbed.errors import BadInput
from testbed.experiments.inputs.profile import InteractionVerify, PassWork, VerifyCost, load_profile
from testbed.files import json_values
from testbed.optim.pass_time import Coefficients, RequestWork, coefficients_of, features

SELF = "probe"
"""Special name: measure a few passes on the engine at start-up."""
SAMPLE = tuple(product((1, 4, 16), (0, 2, 4, 8, 16), (64, 256, 768)))
"""Representative passes: number of requests, drafted tokens of each, cached tokens of each."""


def coefficients(name: str) -> Coefficients | None:
    """Coefficients of a profile (by name or file) or from a JSON file; None for `probe`.

    Raises:
        BadInput: no such profile or file, or no coefficients in it.
    """
    if name == SELF:
        return None
    if Path(name).suffix == ".json":
        return read(Path(name))
    return load_profile(name).interactions.coefficients


def read(path: Path) -> Coefficients:
    """Read coefficients from a JSON file.

    Raises:
        BadInput: unreadable file, or no coefficients in it.
    """
    try:
        document = json_values(read_text(path))
    except json.JSONDecodeError as exc:
        raise BadInput(f"{path.name}, line {exc.lineno}: no JSON ({exc.msg}); give the output of fit --json") from exc
    except ValueError as exc:
        raise BadInput(f"{path.name} is no JSON that can be used: {exc}; give the output of fit --json") from exc
    if not isinstance(document, dict):
        raise BadInput(f"{path.name} is no JSON object; give the output of fit --json")
    return coefficients_of(document, path.name)


def pass_coefficients(verify: VerifyCost) -> Coefficients:
    """Coefficients of eq. 19 of a profile: its own, or fitted to the passes in `SAMPLE` by non-negative least squares
    of relative errors.

    Raises:
        BadInput: passes that take no time.
    """
    if isinstance(verify, InteractionVerify):
        return verify.coefficients
    rows, seconds = [], []
    for requests, drafted, cached in SAMPLE:
        rows.append(features([RequestWork(drafted + 1, cached)] * requests))
        seconds.append(verify.pass_s([PassWork(drafted, drafted + 1, cached)] * requests))
    relative = np.array(rows) / np.maximum(np.array(seconds), 1e-12)[:, None]
    scale = np.maximum(relative.max(axis=0), 1e-300)
    found = nnls(relative / scale, np.ones(len(rows)))[0] / scale
    return Coefficients(*found.tolist())
