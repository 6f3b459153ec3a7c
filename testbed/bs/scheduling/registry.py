"""The schedulers by name."""

from __future__ import annotations

from testbed.bs.scheduling.base import Fcfs, Scheduler
from testbed.bs.scheduling.slo import Slo
from testbed.errors import BadInput
from testbed.optim.pass_time import Coefficients

SCHEDULERS = ("fcfs", "slo")


def check_scheduler(kind: str) -> str:
    """Return a scheduler's name.

    Raises:
        BadInput: unknown kind; the message lists the known ones.
    """
    if kind not in SCHEDULERS:
        raise BadInput(f"unknown scheduler {kind!r}; known: {', '.join(SCHEDULERS)}")
    return kind


def scheduler(
    kind: str,
    max_requests: int,
    max_tokens: int,
    coefficients: Coefficients | None = None,
    *,
    kv_tokens: int | None = None,
    chunk_tokens: int | None = None,
    protect: bool = True,
    cuts: bool = False,
) -> Scheduler:
    """The scheduler of that kind.

    Args:
        coefficients: of verification passes; `slo` needs them.
        kv_tokens: tokens whose keys and values a pass of `slo` may need; None: any.
        chunk_tokens: of `fcfs`; `slo` goes by deadlines.
        protect: of `slo`: whether passes stay small for the sake of deadlines.
        cuts: of `slo`: whether prompts may be cut, so that passes leave time for the fastest guaranteed speed.

    Raises:
        BadInput: unknown kind, or values that cannot be.
    """
    if check_scheduler(kind) == "fcfs":
        return Fcfs(max_requests, max_tokens, chunk_tokens)
    if coefficients is None:
        raise BadInput("scheduler slo needs the coefficients of verification passes (`testbed estimator fit`)")
    return Slo(
        coefficients=coefficients,
        max_requests=max_requests,
        max_tokens=max_tokens,
        kv_tokens=kv_tokens,
        protect=protect,
        cuts=cuts,
    )
