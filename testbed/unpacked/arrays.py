"""Arrays from .npz files, which unpack to more than their size: bounded by what they unpack to."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Any

from testbed.errors import BadInput
from testbed.files import regular_bytes

MOST_UNPACKED_BYTES = 2**30
"""Largest size of the arrays in a file."""


def npz_arrays(path: Path) -> dict[str, Any]:
    """The arrays in a .npz file by name.

    Raises:
        BadInput: unreadable, damaged, with Python objects, or of more than `MOST_UNPACKED_BYTES`, which a file of a
            thousandth of that size may unpack to.
    """
    import numpy as np

    try:
        regular_bytes(path)
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(part.file_size for part in archive.infolist())  # zipfile reads no more than this
        if unpacked > MOST_UNPACKED_BYTES:
            raise BadInput(f"its arrays have {unpacked} bytes; at most {MOST_UNPACKED_BYTES}")
        with np.load(path, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
        for name, array in arrays.items():
            if (
                array.dtype.kind == "U"
                and array.size
                and np.atleast_1d(array).astype("<U").view("<u4").max() > sys.maxunicode
            ):
                raise BadInput(f"its array {name} has characters that do not exist")
        return arrays
    except Exception as exc:  # of zipfile, numpy, and the compressions
        raise BadInput(f"{path} is no file of arrays that can be used: {exc}") from exc
