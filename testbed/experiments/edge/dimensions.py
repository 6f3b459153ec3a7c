"""Model dimensions from files, for the cost model of edge SD batching (Table I)."""

from __future__ import annotations

from pathlib import Path

from testbed.errors import ModelError
from testbed.files import json_object
from testbed.optim.inference_cost import Model


def of_directory(directory: Path) -> Model:
    """Dimensions of a Hugging Face model.

    Raises:
        ModelError: its configuration is unreadable or incomplete.
    """
    path = directory / "config.json"
    config = json_object(path)
    try:
        text = config.get("text_config", config)
        return Model(layers=text["num_hidden_layers"], hidden=text["hidden_size"], ffn=text["intermediate_size"])
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ModelError(f"{path} does not give layers, hidden and feed-forward size: {exc}") from exc


def of_gguf(path: Path) -> Model:
    """Dimensions of a GGUF file.

    Raises:
        ModelError: it is unreadable or incomplete.
    """
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError as exc:
        raise ModelError("reading a GGUF file's dimensions needs gguf: install the extra `lab`") from exc
    try:
        fields = GGUFReader(path).fields
        kind = fields["general.architecture"].contents()
        layers, hidden, ffn = (
            int(fields[f"{kind}.{name}"].contents())
            for name in ("block_count", "embedding_length", "feed_forward_length")
        )
    except (OSError, ValueError, KeyError, IndexError, TypeError) as exc:
        raise ModelError(f"{path} does not give layers, hidden and feed-forward size: {exc}") from exc
    return Model(layers=layers, hidden=hidden, ffn=ffn)
