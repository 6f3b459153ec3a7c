"""Whether a plan can be followed from this machine: what it names is here, and whom it names can be talked to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from testbed.channel.access import is_loopback
from testbed.channel.keys import load_client
from testbed.errors import BadInput
from testbed.experiments.field.plan import FieldPlan, Place
from testbed.experiments.runs.prepare import check_window_rule
from testbed.ue.dial import addresses


def check_here(plan: FieldPlan, emulated: bool = False) -> None:
    """Refuse a plan whose files or keys are not on this machine, before anybody walks anywhere.

    Args:
        emulated: its links and base station are this machine's own.

    Raises:
        BadInput: what is missing, and where.
    """
    for name in ("drafter", "tokenizer"):
        path = getattr(plan, name)
        if path is not None and not Path(path).exists():
            raise BadInput(f"{name}: there is no {path} on this machine")
    for method in plan.methods:
        with _of(f"method {method.name}"):
            check_window_rule(method.window_rule, method.predictor)
    for place in plan.places if not emulated else ():
        with _of(f"place {place.name}"):
            _check_agent(place, plan) if place.ue is not None else _check_keys(plan)


@contextlib.contextmanager
def _of(what: str) -> Iterator[None]:
    """Say in a refusal what it is about."""
    try:
        yield
    except BadInput as exc:
        raise BadInput(f"{what}: {exc}") from exc


def _check_keys(plan: FieldPlan) -> None:
    """This machine is the UE."""
    if plan.keys is not None:
        load_client(Path(plan.keys))
    elif not plan.insecure and not _near(plan.bs):
        raise BadInput(f"{plan.bs} is beyond this machine: name its keys for this UE, keys: DIR, or say insecure: true")


def _check_agent(place: Place, plan: FieldPlan) -> None:
    """An agent is the UE, with keys of its own for the base station."""
    address = str(place.ue)
    if place.ue_keys is not None and plan.insecure:
        raise BadInput("give ue_keys or insecure: true, not both")
    if place.ue_keys is not None:
        load_client(Path(place.ue_keys))
    elif not plan.insecure and not is_loopback(address):
        raise BadInput(f"{address} is beyond this machine: name the keys that it made for us, ue_keys: DIR")
    if _near(plan.bs) and not is_loopback(address):
        raise BadInput(f"bs: {plan.bs} is what {address} would look for on itself; give the base station's address")


def _near(bs: str) -> bool:
    """Whether all base stations are this machine."""
    return all(map(is_loopback, addresses(bs)))
