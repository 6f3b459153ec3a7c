"""Coefficients of verification passes by name: a device profile's, or a file that `estimator fit --json` wrote."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from testbed.channel.trace import read_text
from testbed.errors import BadInput
from testbed.experiments.inputs.profile import InteractionVerify, PassWork, VerifyCost, load_profile
from testbed.optim.pass_time import Coefficients, coefficients_of, features
from testbed.optim.pass_time import RequestWork as Seen

SELF = "probe"
"""In place of a name: let the engine measure a few passes when it starts."""
SAMPLE = tuple(product((1, 4, 16), (0, 2, 4, 8, 16), (64, 256, 768)))
"""Passes that stand for all: requests, tokens drafted by each, cached tokens of each."""


def coefficients(name: str) -> Coefficients | None:
    """Those of a profile by name, or from a file of JSON or of a profile; None for `probe`.

    Raises:
        BadInput: no such profile or file, or one without them.
    """
    if name == SELF:
        return None
    if Path(name).suffix == ".json":
        return read(Path(name))
    profile = load_profile(name)
    verify = profile.verify
    if not isinstance(verify, InteractionVerify):
        raise BadInput(
            f"profile {profile.name} has no coefficients of eq. 19; give one of kind interactions, or a file"
        )
    return Coefficients(verify.a_s, verify.b_compute_s, verify.b_read_s, verify.c_s)


def read(path: Path) -> Coefficients:
    """From a JSON file.

    Raises:
        BadInput: it cannot be read, or has no coefficients.
    """
    try:
        document = json.loads(read_text(path))
    except json.JSONDecodeError as exc:
        raise BadInput(f"{path.name}, line {exc.lineno}: no JSON ({exc.msg}); give what fit --json writes") from exc
    if not isinstance(document, dict):
        raise BadInput(f"{path.name} is no JSON object; give what fit --json writes")
    return coefficients_of(document, path.name)


def pass_coefficients(verify: VerifyCost) -> Coefficients:
    """Eq. 19's coefficients of a profile's passes: its own, or fitted to the passes that `SAMPLE` lists, by least
    squares of relative errors, none below 0.

    Raises:
        BadInput: passes that take no time.
    """
    if isinstance(verify, InteractionVerify):
        return Coefficients(verify.a_s, verify.b_compute_s, verify.b_read_s, verify.c_s)
    rows, seconds = [], []
    for requests, drafted, cached in SAMPLE:
        rows.append(features([Seen(drafted + 1, cached)] * requests))
        seconds.append(verify.pass_s([PassWork(drafted, drafted + 1, cached)] * requests))
    relative = np.array(rows) / np.maximum(np.array(seconds), 1e-12)[:, None]
    scale = np.maximum(relative.max(axis=0), 1e-300)
    found = nnls(relative / scale, np.ones(len(rows)))[0] / scale
    return Coefficients(*found.tolist())
