"""Start of an endpoint: methods, addresses, keys; and refusals before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.errors import BadInput
from testbed.ue.api.config import EndpointConfig
from testbed.ue.api.serve import methods, serve
from tests.support.endpoints import unknown, words


@pytest.mark.parametrize(
    ("names", "greedy", "sampled"),
    [
        (("greedy", "rejection"), "greedy", "rejection"),
        (("split", "sh"), "sh", "split"),
        (("auto",), "auto", "coupled"),
        (("split",), "split", "split"),
        (("coupled",), "coupled", "coupled"),
    ],
)
def test_one_method_at_temperature_0_and_one_above(names: tuple[str, ...], greedy: str, sampled: str) -> None:
    assert methods(names) == (greedy, sampled)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"protocols": ("greedy", "fh")}, "one for temperature 0"),
    ({"protocols": ("target-only",)}, "unknown protocol 'target-only'"),
    ({"window": 0}, "window"),
    ({"threshold": 1.5}, "threshold"),
    ({"temperature": -1.0}, "temperature"),
    ({"bs": "nonsense"}, "nonsense"),
    ({"hidden_bits": 7}, "7"),
    ({"max_tokens": 0}, "max-tokens"),
    ({"queue": -1}, "queue"),
    ({"port": 70000}, "port"),
    ({"timeout_s": 0.0}, "timeout"),
    ({"auto_rule": "luck"}, "auto-rule"),
    ({"drafter": "small.gguf"}, "--tokenizer"),
    ({"prompt_format": "chat"}, "no chat template"),
    ({"token_file": "/nowhere/key"}, "cannot be read as a key"),
    ({"host": "0.0.0.0"}, "--token-file"),
]


@pytest.mark.parametrize(("options", "says"), REFUSED, ids=lambda value: "" if isinstance(value, str) else str(value))
def test_what_cannot_be_served_is_refused_first(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        serve(EndpointConfig(**{"port": 0, **options}), (tmp_path / "no.gguf", words(tmp_path)), unknown, print)


@pytest.mark.parametrize("content", ["", " \n", "kéy", "two\nlines"])
def test_a_file_without_a_key(tmp_path: Path, content: str) -> None:
    key = tmp_path / "key"
    key.write_text(content)
    with pytest.raises(BadInput, match="holds no key"):
        serve(EndpointConfig(port=0, token_file=str(key)), (tmp_path / "no.gguf", words(tmp_path)), unknown, print)


def test_a_drafter_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no\.gguf"):
        serve(EndpointConfig(port=0), (tmp_path / "no.gguf", words(tmp_path)), unknown, print)
