"""Paths of the bundled pair's files."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from testbed.assets.fingerprints import model_fingerprint
from testbed.errors import ModelError
from testbed.files import cache_folder, make_folder, whole_file
from testbed.protocols.vocabulary import BESIDE_GGUF

DATA = Path(__file__).parent / "data"
BUNDLED = "bundled"


@dataclass(frozen=True)
class Bundle:
    """Files of the bundled pair; None for missing ones."""

    drafter: Path | None
    """GGUF file for llama.cpp."""
    target: Path | None
    """Model directory for vLLM and transformers, with the tokenizer."""
    tokenizer: Path | None
    drafter_hf: Path | None = None
    """Drafter as a transformers directory."""
    head: Path | None = None
    predictor: Path | None = None

    def require(self, part: str) -> Path:
        """Path of one part.

        Raises:
            ModelError: the part is missing.
        """
        path: Path | None = asdict(self)[part]
        if path is None:
            raise ModelError(f"the bundled {part} is missing; run `testbed models train`")
        return path


def head_directory(name: str | None = None) -> Path:
    """Directory of a decision head: a path, or `bundled` (the default) or `bundled:NAME` for the bundled pair's.

    Raises:
        ModelError: no such head; the message lists the bundled ones.
    """
    chosen, _, variant = (name or BUNDLED).partition(":")
    if chosen != BUNDLED:
        path = Path(name or "")
        if not path.is_dir():
            raise ModelError(f"no decision head at {path}: give its directory, the one that `head train` wrote")
        return path
    path = DATA / (f"head-{variant}" if variant else "head")
    if not path.is_dir():
        found = [p.name.replace("head-", f"{BUNDLED}:").replace("head", BUNDLED) for p in sorted(DATA.glob("head*"))]
        known = f"there are {', '.join(found)}" if found else "the bundled pair has none"
        raise ModelError(f"no decision head {name or BUNDLED}: {known}; train one with `testbed head train`")
    return path


def bundled_target(gguf: bool = False) -> Path:
    """The bundled target: its directory, or a float32 GGUF file with the tokenizer beside it.

    The file is written to the user's cache on first use, once llama.cpp has been found to compute with it what
    transformers computes.

    Raises:
        ModelError: the target is missing, or packages for the conversion are.
        BadInput, TestbedError: the cache cannot be written.
    """
    target = bundled().require("target")
    if not gguf:
        return target
    path = cache_folder() / f"bundled-target-{model_fingerprint(target)}" / "target.gguf"
    if not path.exists():
        try:
            from testbed.models.real.parity import export_and_prove
        except ModuleNotFoundError as exc:
            raise ModelError(f"the bundled target must be converted to GGUF once, which needs {exc.name}") from exc
        make_folder(path.parent)
        for name in BESIDE_GGUF:
            if (target / name).exists():
                with whole_file(path.with_name(name)) as part:
                    shutil.copyfile(target / name, part)
        export_and_prove(target, path)
    return path


def bundled() -> Bundle:
    """Files of the bundled pair in the package."""

    def existing(path: Path) -> Path | None:
        return path if path.exists() else None

    return Bundle(
        drafter=existing(DATA / "drafter.gguf"),
        target=existing(DATA / "target"),
        tokenizer=existing(DATA / "target"),
        drafter_hf=existing(DATA / "drafter"),
        head=existing(DATA / "head"),
        predictor=existing(DATA / "predictor"),
    )
