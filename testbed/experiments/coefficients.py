"""Coefficients of verification passes by name: a device profile's, or a file that `estimator fit --json` wrote."""

from __future__ import annotations

import json
from pathlib import Path

from testbed.bs.estimator import Coefficients, coefficients_of
from testbed.channel.trace import read_text
from testbed.errors import BadInput
from testbed.experiments.profile import InteractionVerify, load_profile

SELF = "probe"
"""In place of a name: let the engine measure a few passes when it starts."""


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
