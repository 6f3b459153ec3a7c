"""Damaged episodes are refused in one line that names the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from testbed.decision_head.episodes import EpisodeStore, Meta, Mismatches
from testbed.errors import BadInput

N, D, T, LONG = 12, 6, 7, 4
Arrays = dict[str, Any]


def chunk() -> Arrays:
    random = np.random.default_rng(0)
    return {
        **{name: np.arange(N, dtype=np.int32) for name in ("prompt", "order", "position", "draft_id", "target_id")},
        "prompt_len": np.full(N, 2, np.int32),
        **{name: random.normal(size=(N, D)).astype(np.float16) for name in ("drafter_hidden", "drafter_after")},
        **{name: random.normal(size=(N, T)).astype(np.float32) for name in ("target_hidden", "target_after")},
        "prefix_start": np.arange(N + 1, dtype=np.int64) * LONG,
        "prefix_ids": np.ones(N * LONG, np.int32),
    }


def labels() -> Arrays:
    return {"label": np.tile([0, 1, -1], N // 3).astype(np.int8), "completions": np.array([5], np.int64)}


def stored(folder: Path, arrays: Arrays, labelled: Arrays) -> EpisodeStore:
    meta = Meta(
        dataset="d", prompts=N, seed=0, window=8, max_tokens=64, policy="strict", engine="transformers", drafter="d",
        drafter_fingerprint="x", drafter_quantisation="F32", target="t", target_fingerprint="y", drafter_hidden=D,
        target_hidden=T,
    )  # fmt: skip
    store = EpisodeStore(folder / "episodes")
    store.directory.mkdir()
    store.create(meta)
    save_file(arrays, store.directory / "chunk-00000.safetensors")
    save_file(labelled, store.directory / "labels-00000.safetensors")
    return EpisodeStore(store.directory)


def test_whole_ones_are_read(tmp_path: Path) -> None:
    found, critical = stored(tmp_path, chunk(), labels()).load()
    assert isinstance(found, Mismatches) and len(found) == len(critical) == N * 2 // 3


def changed(name: str, value: Any) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.update({name: value})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda arrays: arrays.pop("position"), "its arrays are"),
        (changed("further", np.zeros(1)), "its arrays are"),
        (changed("prompt", np.zeros((N, 2), np.int32)), "prompt needs integers"),
        (changed("prompt", np.full(N, np.nan, np.float32)), "prompt needs integers"),
        (changed("prompt", np.array(1, np.int32)), "prompt needs integers"),
        (changed("order", np.full(N, -5, np.int32)), "order has numbers below 0"),
        (changed("drafter_hidden", np.zeros((5, D), np.float16)), "drafter_hidden needs floats"),
        (changed("target_hidden", np.zeros(N, np.float32)), "target_hidden needs floats"),
        (changed("target_hidden", np.zeros((N, T + 3), np.float32)), "target_hidden needs floats"),
        (changed("target_after", np.zeros((N, T), np.int8)), "target_after needs floats"),
        (changed("target_hidden", np.full((N, T), np.inf, np.float32)), "states that are not finite"),
        (changed("drafter_after", np.full((N, D), np.nan, np.float16)), "states that are not finite"),
        (changed("target_after", np.full((N, T), 3e38, np.float32)), "states that are not finite"),
        (changed("prefix_start", np.zeros(0, np.int64)), "prefix_start needs integers"),
        (changed("prefix_start", np.zeros(3, np.int64)), "prefix_start needs integers"),
        (changed("prefix_start", np.arange(N + 1)[::-1].copy() * LONG), "does not divide"),
        (changed("prefix_start", np.append(np.zeros(N, np.int64), 2**40)), "does not divide"),
    ],
)
def test_damaged_chunks(change: Callable[[Arrays], Any], said: str, tmp_path: Path) -> None:
    arrays = chunk()
    change(arrays)
    store = stored(tmp_path, arrays, labels())
    for read in (store.load, lambda: store.read(0)):
        with pytest.raises(BadInput, match=f"chunk-00000.safetensors is not a chunk of episodes: .*{said}"):
            read()


@pytest.mark.parametrize(
    ("labelled", "said"),
    [
        ({"label": labels()["label"]}, "its arrays are label, not"),
        ({"completions": np.array([1])}, "its arrays are completions, not"),
        (labels() | {"label": np.zeros(5, np.int8)}, "has 5 labels of 12 mismatches"),
        (labels() | {"label": np.zeros((N, 2), np.int8)}, "label needs integers"),
        (labels() | {"label": np.full(N, 77, np.int8)}, "labels are -1, 0, 1"),
        (labels() | {"label": np.full(N, np.nan, np.float32)}, "label needs integers"),
        (labels() | {"completions": np.zeros(0, np.int64)}, "completions needs integers"),
    ],
)
def test_damaged_labels(labelled: Arrays, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"labels-00000.safetensors .*{said}"):
        stored(tmp_path, chunk(), labelled).load()


def test_meta_is_a_regular_file(tmp_path: Path) -> None:
    (tmp_path / "meta.json").symlink_to("/dev/zero")
    with pytest.raises(BadInput, match="no episodes in"):
        EpisodeStore(tmp_path).open()


@pytest.mark.parametrize("kind", ["BF16", "F8_E4M3"])
def test_types_that_numpy_lacks(kind: str, tmp_path: Path) -> None:
    store, size = stored(tmp_path, chunk(), labels()), {"BF16": 2, "F8_E4M3": 1}[kind] * N
    header = {"label": {"dtype": kind, "shape": [N], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    path = store.directory / "labels-00000.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))
    with pytest.raises(BadInput, match=r"labels-00000\.safetensors cannot be read"):
        store.load()


def test_other_names_are_no_chunks(tmp_path: Path) -> None:
    store = stored(tmp_path, chunk(), labels())
    (store.directory / "labels-².safetensors").write_bytes(b"")
    assert store.labelled() == [0]
