"""Checks that the files and keys of a plan exist on this machine."""

from __future__ import annotations

from pathlib import Path

from testbed.channel.access import is_loopback
from testbed.channel.keys import load_client
from testbed.errors import BadInput
from testbed.experiments.field.plan import FieldPlan, Place, naming
from testbed.experiments.runs.prepare import check_window_rule
from testbed.ue.dial import addresses


def check_here(plan: FieldPlan, emulated: bool = False) -> None:
    """Refuse a plan whose files or keys are missing on this machine, before the run starts.

    Args:
        emulated: links and base station are emulated on this machine.

    Raises:
        BadInput: a missing file or key.
    """
    for name in ("drafter", "tokenizer"):
        path = getattr(plan, name)
        if path is not None and not Path(path).exists():
            raise BadInput(f"{name}: {path} does not exist on this machine")
    for method in plan.methods:
        with naming(f"method {method.name}"):
            check_window_rule(method.window_rule, method.predictor)
    agents = [place.ue for place in plan.places]
    if plan.together and not emulated and (None in agents or len(set(agents)) < len(agents)):
        raise BadInput("together needs an agent of its own at every place: set ue: tcp://HOST:PORT")
    for place in plan.places if not emulated else ():
        with naming(f"place {place.name}"):
            _check_agent(place, plan) if place.ue is not None else _check_keys(plan)


def _check_keys(plan: FieldPlan) -> None:
    """Check the keys for the base station where this machine is the UE."""
    if plan.keys is not None:
        load_client(Path(plan.keys))
    elif not plan.insecure and not _near(plan.bs):
        raise BadInput(f"{plan.bs} is not on this machine; set keys: DIR to this UE's keys for it, or insecure: true")


def _check_agent(place: Place, plan: FieldPlan) -> None:
    """Check keys and addresses where an agent is the UE; it has its own keys for the base station."""
    address = str(place.ue)
    if place.ue_keys is not None and plan.insecure:
        raise BadInput("give ue_keys or insecure: true, not both")
    if place.ue_keys is not None:
        load_client(Path(place.ue_keys))
    elif not plan.insecure and not is_loopback(address):
        raise BadInput(f"{address} is not on this machine; set ue_keys: DIR to the keys that it made for this machine")
    if _near(plan.bs) and not is_loopback(address):
        raise BadInput(f"bs: {plan.bs} would refer to the agent's own machine ({address}); give an external address")


def _near(bs: str) -> bool:
    """Whether all base stations are on this machine."""
    return all(map(is_loopback, addresses(bs)))
