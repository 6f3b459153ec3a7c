"""Origin of GGUF files that the testbed has converted: the model directory, and how far the hidden states differ."""

from __future__ import annotations

from pathlib import Path

from testbed.assets.fingerprints import model_fingerprint
from testbed.llama.gguf import read_header

SOURCE = "testbed.source"
"""Metadata entry: fingerprint of the directory that the file was converted from."""
DIFFERENCE = "testbed.states_difference"
"""Metadata entry: largest difference of a hidden value under llama.cpp from transformers on the directory, as a share
of the largest magnitude."""
NOT_COMPARED = -1.0
STATES_TOLERANCE = 0.02
"""Largest difference at which a decision head of the directory's model may judge by the file's states."""


def states_fingerprint(target: Path) -> str:
    """Fingerprint of the model whose hidden states a target has: that of its files, or, for a GGUF file whose states
    were found to agree within STATES_TOLERANCE, that of the directory it was converted from.

    Raises:
        BadInput: the files cannot be read.
        ModelError: not a GGUF file.
    """
    if target.is_file():
        entries = read_header(target).scalars
        source, difference = entries.get(SOURCE), entries.get(DIFFERENCE, NOT_COMPARED)
        if isinstance(source, str) and isinstance(difference, float) and 0 <= difference <= STATES_TOLERANCE:
            return source
    return model_fingerprint(target)
