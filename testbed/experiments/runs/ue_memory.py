"""Memory of a UE's process with a drafter: measured in a process of its own, and compared with the file's header.

python -m testbed.experiments.runs.ue_memory FILE OPTIONS   # what `measure` starts; OPTIONS as JSON
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from testbed.errors import ModelError
from testbed.llama.context import MAX_BATCH, LlamaOptions
from testbed.process.children import module_command

DRAFTED = 8
"""Tokens that are drafted after the prompt; memory does not grow with them."""
TIMEOUT_S = 900.0
BAD = 2


class MeasuredMemory(NamedTuple):
    """Resident memory of a process, in bytes.

    Attributes:
        base_bytes: with everything imported that a UE's run imports, before a model is loaded.
        peak_bytes: the most that it ever had, after a prompt of a full batch and some drafting.
    """

    base_bytes: int
    peak_bytes: int


def measure(path: Path, options: LlamaOptions) -> MeasuredMemory:
    """Load a drafter and draft with it in a process of its own; Linux only.

    Raises:
        ModelError: the drafter cannot be used, or does not fit this machine.
    """
    command = module_command("testbed.experiments.runs.ue_memory", str(path), json.dumps(asdict(options)))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ModelError(f"{path}: no prompt of {MAX_BATCH} tokens computed within {TIMEOUT_S:.0f} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}: out of memory?"]
        raise ModelError(said[-1] if done.returncode == BAD else f"{path}: {said[-1]}")
    return MeasuredMemory(**json.loads(done.stdout))


def resident_bytes(field: str = "VmRSS") -> int:
    """A size in `/proc/self/status`: `VmRSS` now, `VmHWM` the highest so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def main(path: Path, options: LlamaOptions) -> MeasuredMemory:
    """Load and draft in this process."""
    import testbed.experiments.runs.uerun  # noqa: F401  (what `testbed ue run` has in memory beside the model)
    from testbed.ue.llama.drafter import LlamaDrafter

    with contextlib.suppress(ImportError, OSError, RuntimeError):  # the drafter will say so
        import llama_cpp.llama_cpp  # noqa: F401
    _write_parquet()
    base_bytes = resident_bytes()
    chosen = {name: value for name, value in asdict(options).items() if name != "outputs"}  # of base stations
    drafter = LlamaDrafter(path, **chosen)
    ids = [1 + at % (drafter.vocab_size - 1) for at in range(max(1, min(MAX_BATCH + 1, drafter.context - DRAFTED)))]
    sequence = drafter.open(ids)
    for _ in range(min(DRAFTED, drafter.context - len(ids))):
        sequence.draft_one()
    sequence.close()
    peak_bytes = resident_bytes("VmHWM")
    drafter.close()
    return MeasuredMemory(base_bytes, peak_bytes)


def _write_parquet() -> None:
    """Import what a run imports at its end: pyarrow is the largest library of a UE."""
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"round": [0]}), io.BytesIO())


if __name__ == "__main__":
    try:
        print(json.dumps(main(Path(sys.argv[1]), LlamaOptions(**json.loads(sys.argv[2])))._asdict()))
    except ModelError as exc:
        print(exc, file=sys.stderr)
        sys.exit(BAD)
