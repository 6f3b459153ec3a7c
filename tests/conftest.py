"""Fixtures that several folders of tests share."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.models import KINDS, PADDED_ROWS, TOKENS, make_model
from tests.support.reference import Reference

# Before torch is imported: on such small models threads only wait for each other, long where anything else runs.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell's background jobs ignore Ctrl-C, which tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no reason to fail, and the same commit always sees the same examples; `explore` looks for new ones.
settings.register_profile("testbed", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("explore", settings.get_profile("testbed"), derandomize=False, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "testbed"))


def pytest_unconfigure() -> None:
    """Close /dev/null, which llama-cpp-python opens twice on import and leaves to the interpreter's end. Then CPython
    still goes by the filters of the last warning that it looked up, a test's, and would report both as errors.
    """
    if (utils := sys.modules.get("llama_cpp._utils")) is not None:
        utils.outnull_file.close()
        utils.errnull_file.close()


@pytest.fixture(scope="session")
def random_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Hugging Face directories of tiny random models, by kind."""
    root = tmp_path_factory.mktemp("random-models")
    models = {}
    for seed, kind in enumerate(KINDS):
        architecture, _, variant = kind.partition("-")
        rows = TOKENS + (PADDED_ROWS if variant == "padded" else 0)
        tied = variant == "tied"
        models[kind] = make_model(architecture, root / kind, seed, vocab_size=rows, tie_word_embeddings=tied)
    return models


@pytest.fixture(scope="session")
def random_ggufs(random_models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same models as f32 GGUF files."""
    from testbed.models.export import export_gguf

    root = tmp_path_factory.mktemp("random-ggufs")
    ggufs = {kind: root / f"{kind}.gguf" for kind in random_models}
    for kind, path in ggufs.items():
        export_gguf(random_models[kind], path)
    return ggufs


@pytest.fixture(scope="session")
def references(random_models: dict[str, Path]) -> dict[str, Reference]:
    """The same models under transformers."""
    return {kind: Reference(path, TOKENS) for kind, path in random_models.items()}
