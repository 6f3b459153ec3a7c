"""The registry of judges, and the judge of a base station.

An installed package adds a judge by an entry point in the group `testbed.judges`, which names a `JudgeEntry`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from testbed.assets.fingerprints import SYNTHETIC
from testbed.bs.judging.base import Judge, StrictJudge
from testbed.bs.judging.head import BudgetJudge, HeadJudge, TableJudge
from testbed.bs.judging.token_rule import TokenRuleJudge, digit_free
from testbed.decision_head.head import DecisionHead, check_fits, load_head
from testbed.errors import BadInput
from testbed.llama.origin import states_fingerprint
from testbed.registry import Registry


class JudgeParts(NamedTuple):
    """Parts of a judge; its entry says which of them it needs."""

    head: DecisionHead | None
    budget: float | None
    """Share of answers that may change."""
    target: Path | None
    """Directory of the target; None: it has no files."""


@dataclass(frozen=True, kw_only=True)
class JudgeEntry:
    """A judge that can be chosen by name."""

    kind: str
    about: str
    """One line for help screens."""
    make: Callable[[JudgeParts], Judge]
    needs_head: bool = False
    needs_budget: bool = False
    needs_tokenizer: bool = False
    """Whether it reads the target's tokenizer."""
    lossless: bool = False
    """Whether it rejects every candidate, so that outputs are the target's own."""
    takes_threshold: bool = False
    """Whether it judges by the request's θ itself; for the others any θ above 0 is the same."""


def _rule(parts: JudgeParts) -> Judge:
    assert parts.target is not None
    return TokenRuleJudge(digit_free(parts.target))


def _head(parts: JudgeParts) -> Judge:
    assert parts.head is not None
    return HeadJudge(parts.head)


def _table(parts: JudgeParts) -> Judge:
    assert parts.head is not None
    if not parts.head.info.thresholds:
        raise BadInput("this head names no thresholds of its own: take judge head and give one")
    return TableJudge(parts.head)


def _budget(parts: JudgeParts) -> Judge:
    assert parts.head is not None and parts.budget is not None
    return BudgetJudge(parts.head, parts.budget)


JUDGES = Registry(
    "judge",
    "testbed.judges",
    JudgeEntry(
        kind="strict",
        about="rejects every mismatch",
        make=lambda parts: StrictJudge(),
        lossless=True,
        takes_threshold=True,
    ),
    JudgeEntry(
        kind="digits", about="keeps a mismatch whose two tokens hold no digit", make=_rule, needs_tokenizer=True
    ),
    JudgeEntry(
        kind="head",
        about="rejects where the head's probability reaches the request's threshold",
        make=_head,
        needs_head=True,
        takes_threshold=True,
    ),
    JudgeEntry(
        kind="table",
        about="as head, by the threshold that the head names for the channel",
        make=_table,
        needs_head=True,
    ),
    JudgeEntry(
        kind="budget",
        about="keeps mismatches within a quality budget, by the head's probabilities",
        make=_budget,
        needs_head=True,
        needs_budget=True,
    ),
    of=JudgeEntry,
)


def judge_kind(kind: str | None, head: str | Path | None, budget: float | None) -> str:
    """The kind of judge that these options mean; without a name, the one that takes the others.

    Raises:
        BadInput: an unknown kind, or options that do not go together.
    """
    if kind is None:
        kind = "budget" if budget is not None else "head" if head is not None else "strict"
    entry = JUDGES.choose(kind)
    if head is not None and not entry.needs_head:
        others = ", ".join(other.kind for other in JUDGES.values() if other.needs_head)
        raise BadInput(f"judge {kind} takes no head: leave the head out, or take judge {others}")
    if (budget is not None) != entry.needs_budget:
        needs = "needs a quality budget, such as 0.01" if entry.needs_budget else "has no quality budget"
        raise BadInput(f"judge {kind} {needs}")
    return kind


def make_judge(
    kind: str, head: str | Path | None, budget: float | None, target: Path | None, hidden_size: int | None = None
) -> Judge:
    """The judge of a base station.

    Args:
        kind: one of `JUDGES`.
        head: directory of a decision head.
        budget: share of answers that may change.
        target: the target's directory; None: it has no files.
        hidden_size: hidden size of the target, if known.

    Raises:
        BadInput: an unknown kind, options that do not go together, or a head that does not fit the target.
    """
    entry = JUDGES.choose(judge_kind(kind, head, budget))
    if entry.needs_tokenizer and target is None:
        raise BadInput(f"judge {kind} reads the tokens' texts, which a target without a tokenizer lacks")
    if entry.needs_head and head is None:
        raise BadInput(f"judge {kind} needs a decision head: give its directory (--head DIR)")
    loaded = None if head is None else _fitting(Path(head), target, hidden_size)
    return entry.make(JudgeParts(loaded, budget, target))


def _fitting(directory: Path, target: Path | None, hidden_size: int | None) -> DecisionHead:
    """Load a head and check that it was trained for the target.

    Raises:
        BadInput: it cannot be read, or belongs to another target.
    """
    head = load_head(directory)
    fingerprint = SYNTHETIC if target is None else states_fingerprint(target)
    check_fits(head.info, target_fingerprint=fingerprint, target_hidden=hidden_size)
    return head
