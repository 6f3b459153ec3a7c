"""Model directories from elsewhere run nothing: neither pickled weights nor Python of their own."""

from __future__ import annotations

import pickle
import shutil
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from testbed.bs.engines.model_files import check_files
from testbed.bs.engines.transformers import TransformersEngine
from testbed.errors import BadInput, ModelError
from testbed.models.checkpoint import Checkpoint
from tests.support.models import edit_config

WITH_VLLM = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")


class Payload:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> Any:
        return Path.touch, (self._trace,)


@pytest.fixture
def directory(random_models: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of a model that a test may turn."""
    return Path(shutil.copytree(random_models["qwen2"], tmp_path / "model"))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "it-ran"


@pytest.fixture
def pickled(directory: Path, trace: Path) -> Path:
    """Weights that are a pickle, under the names that loaders look for, beside the model's."""
    for name in ("pytorch_model.bin", "model.pt", "consolidated.00.pth"):
        (directory / name).write_bytes(pickle.dumps(Payload(trace)))
    return directory


@pytest.fixture
def scripted(directory: Path, trace: Path) -> Path:
    """A model of a known type whose configuration and model come with Python of their own, too."""
    code = f"import pathlib\npathlib.Path({str(trace)!r}).touch()\n"
    for name in ("configuration_own", "modeling_own"):
        (directory / f"{name}.py").write_text(code)
    own = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}
    edit_config(directory, auto_map=own)
    return directory


def test_the_payload_works(trace: Path) -> None:
    pickle.loads(pickle.dumps(Payload(trace)))  # noqa: S301
    assert trace.exists()


def test_transformers_loads_no_pickle(pickled: Path, trace: Path) -> None:
    TransformersEngine(pickled).close()
    (pickled / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        TransformersEngine(pickled)
    assert not trace.exists()


def test_transformers_runs_no_code_of_the_models(scripted: Path, trace: Path) -> None:
    TransformersEngine(scripted).close()
    Checkpoint(scripted)
    edit_config(scripted, model_type="own")
    with pytest.raises(ModelError, match="model_type"):
        TransformersEngine(scripted)
    with pytest.raises(ModelError, match="cannot read its config"):
        Checkpoint(scripted)
    assert not trace.exists()


@WITH_VLLM
def test_vllm_runs_no_code_of_the_models(scripted: Path, trace: Path) -> None:
    from testbed.bs.engines.vllm.engine import VllmEngine

    VllmEngine(scripted, extra={"kv_cache_memory_bytes": 64 << 20}).close()
    edit_config(scripted, model_type="own")
    with pytest.raises(ModelError, match="model_type"):
        VllmEngine(scripted)
    assert not trace.exists()


@WITH_VLLM
def test_vllm_is_told_so_and_cannot_be_told_otherwise(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from testbed.bs.engines.vllm.engine import ENVIRONMENT

    assert ENVIRONMENT["HF_HUB_OFFLINE"] == "1"
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from testbed.bs.engines.vllm.runner import engine_args
    target = check_files(directory, dtype="float32", vocab_size=None, max_model_len=None)
    args = engine_args(target, "float32", {}, {})
    assert args.trust_remote_code is False and str(args.load_format) == "safetensors" and args.config_format == "hf"
    with pytest.raises(BadInput, match="trust_remote_code itself"):
        engine_args(target, "float32", {}, {"trust_remote_code": True})
