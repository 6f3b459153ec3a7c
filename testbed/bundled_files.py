"""Files that come with the testbed and are found by name: link traces, device profiles, sweeps, plans of field runs."""

from __future__ import annotations

from pathlib import Path

from testbed.errors import BadInput

PACKAGE = Path(__file__).parent
CHECKOUT = PACKAGE.parent
KINDS = {"traces": ("traces", ".csv"), "profiles": ("hardware/profiles", ".yaml"), "sweeps": ("sweeps", ".yaml"),
         "plans": ("plans", ".yaml")}  # fmt: skip
"""Kind: folder in a checkout, and how its files end; an installed package has the folder under `bundled/`."""


def names(kind: str) -> list[str]:
    """Names of what there is of a kind, sorted."""
    return sorted(path.stem for path in folder(kind).glob(f"*{KINDS[kind][1]}"))


def find(kind: str, name: str) -> Path:
    """A user's file, or one of ours by name.

    Raises:
        BadInput: neither; the message lists ours.
    """
    ours = folder(kind) / f"{name}{KINDS[kind][1]}"
    if ours.parent == folder(kind) and ours.is_file():
        return ours
    if Path(name).is_file():
        return Path(name)
    raise BadInput(f"no {kind.removesuffix('s')} {name!r}: neither a file nor one of {', '.join(names(kind))}")


def folder(kind: str) -> Path:
    """Where files of a kind lie: in an installed package, or in the checkout around it."""
    name = KINDS[kind][0]
    inside = PACKAGE / "bundled" / name
    return inside if inside.is_dir() else CHECKOUT / name
