"""The judges by kind, made for a target."""

from __future__ import annotations

from pathlib import Path

from testbed.bs.judging.base import Judge, StrictJudge
from testbed.bs.judging.head import BudgetJudge, HeadJudge, TableJudge
from testbed.bs.judging.token_rule import TokenRuleJudge, digit_free
from testbed.decision_head.head import DecisionHead, check_fits, load_head
from testbed.errors import BadInput
from testbed.fingerprints import SYNTHETIC, model_fingerprint

JUDGES = {
    "strict": "keeps no mismatch",
    "digits": "keeps a mismatch whose two tokens hold no digit",
    "head": "rejects where the head's probability reaches the request's threshold",
    "table": "the same, by the threshold that the head names for the channel",
    "budget": "keeps what a quality budget has room for, by the head's probabilities",
}
WITH_HEAD = ("head", "table", "budget")


def judge_kind(kind: str | None, head: str | Path | None, budget: float | None) -> str:
    """The kind that these options mean: without a name, what the others need.

    Raises:
        BadInput: an unknown kind, or options that do not go together.
    """
    if kind is None:
        kind = "budget" if budget is not None else "head" if head is not None else "strict"
    if kind not in JUDGES:
        raise BadInput(f"unknown judge {kind!r}; known: {', '.join(JUDGES)}")
    if head is not None and kind not in WITH_HEAD:
        raise BadInput(f"judge {kind} asks no head: leave the head out, or take judge {', '.join(WITH_HEAD)}")
    if (budget is not None) != (kind == "budget"):
        needs = "needs a quality budget, such as 0.01" if kind == "budget" else "has no quality budget"
        raise BadInput(f"judge {kind} {needs}")
    if budget is not None and not 0 < budget < 1:
        raise BadInput(f"the quality budget is a share of answers in (0, 1), such as 0.01, not {budget}")
    return kind


def make_judge(
    kind: str, head: str | Path | None, budget: float | None, target: Path | None, hidden_size: int | None = None
) -> Judge:
    """The judge of a base station.

    Args:
        kind: one of `JUDGES`.
        head: directory of a decision head.
        budget: share of answers that may change, for judge `budget`.
        target: the target's directory; None: the synthetic target.
        hidden_size: of the target, where it is known.

    Raises:
        BadInput: an unknown kind, options that do not go together, or a head that does not fit the target.
    """
    kind = judge_kind(kind, head, budget)
    if kind == "strict":
        return StrictJudge()
    if kind == "digits":
        if target is None:
            raise BadInput("judge digits reads the tokens' texts, which the synthetic target has not")
        return TokenRuleJudge(digit_free(target))
    if head is None:
        raise BadInput(f"judge {kind} needs a decision head: give its directory (--head DIR)")
    loaded = _fitting(Path(head), target, hidden_size)
    if kind == "table":
        if not loaded.info.thresholds:
            raise BadInput(f"the head {head} names no thresholds of its own: take judge head and give one")
        return TableJudge(loaded)
    return HeadJudge(loaded) if budget is None else BudgetJudge(loaded, budget)


def _fitting(directory: Path, target: Path | None, hidden_size: int | None) -> DecisionHead:
    """Load a head and hold it against the target.

    Raises:
        BadInput: it cannot be read, or is another target's.
    """
    head = load_head(directory)
    fingerprint = SYNTHETIC if target is None else model_fingerprint(target)
    check_fits(head.info, target_fingerprint=fingerprint, target_hidden=hidden_size)
    return head
