"""Files that never end, or that nobody writes, are refused wherever a user may name somebody else's."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.channel.radio.shares import read_shares
from testbed.channel.trace import read_text
from testbed.config import DemoConfig, load
from testbed.decision_head.episodes import EpisodeStore
from testbed.decision_head.head import load_head
from testbed.decision_head.instances import load_instances
from testbed.errors import BadInput, ModelError
from testbed.experiments.edge.fit import read_cost, read_steps
from testbed.experiments.field.log import read_log
from testbed.experiments.field.plan import load_plan
from testbed.experiments.inputs.coefficients import coefficients
from testbed.experiments.inputs.profile import load_profile
from testbed.experiments.inputs.state import check_csi
from testbed.experiments.predictor.traces import TraceStore
from testbed.experiments.sweep.points import load_sweep
from testbed.experiments.sweep.report import load_all
from testbed.power.files import read_samples
from testbed.ue.prompts import _settings
from testbed.ue.windows.predictor import load_predictor
from testbed.unpacked.arrays import npz_arrays

READERS: dict[str, Callable[[Path], object]] = {
    "text.csv": read_text,
    "shares.json": read_shares,
    "cost.json": read_cost,
    "steps.csv": read_steps,
    "coefficients.json": lambda path: coefficients(str(path)),
    "csi.json": lambda path: check_csi(str(path)),
    "arrays.npz": npz_arrays,
    "head.json": lambda path: load_head(path.parent),
    "predictor.json": lambda path: load_predictor(path.parent),
    "relabelled.safetensors": lambda path: load_instances(path, "", 1),
    "chunk-00000.safetensors": lambda path: EpisodeStore(path.parent).read(0),
    "meta.json": lambda path: TraceStore(path.parent).meta(),
    "power.csv": read_samples,
    "log.jsonl": lambda path: read_log(path.parent),
    "plan.yaml": load_plan,
    "sweep.yaml": load_sweep,
    "profile.yaml": lambda path: load_profile(str(path)),
    "demo.yaml": lambda path: load(DemoConfig, path),
    "config.yaml": lambda path: load_all([path.parent]),
    "chat_template.jinja": lambda path: _settings(path.parent),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_never_ends_is_refused(name: str, kind: str, tmp_path: Path) -> None:
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises((BadInput, ModelError)):
        READERS[name](tmp_path / name)
