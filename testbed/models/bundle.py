"""Where the bundled pair's files are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from testbed.errors import ModelError

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Bundle:
    """Files of the bundled pair; None for what is not there."""

    drafter: Path | None
    """GGUF file for llama.cpp."""
    target: Path | None
    """Directory for vLLM and transformers, tokenizer included."""
    tokenizer: Path | None
    drafter_hf: Path | None = None
    """The drafter as a transformers directory."""
    head: Path | None = None
    predictor: Path | None = None

    def require(self, part: str) -> Path:
        """The path of one part.

        Raises:
            ModelError: it is not there.
        """
        path: Path | None = asdict(self)[part]
        if path is None:
            raise ModelError(f"the bundled {part} is missing; `testbed models train` makes the pair")
        return path


def bundled() -> Bundle:
    """The bundled pair as it lies in the package."""

    def there(path: Path) -> Path | None:
        return path if path.exists() else None

    return Bundle(
        drafter=there(DATA / "drafter.gguf"),
        target=there(DATA / "target"),
        tokenizer=there(DATA / "target"),
        drafter_hf=there(DATA / "drafter"),
        head=there(DATA / "head"),
        predictor=there(DATA / "predictor"),
    )
