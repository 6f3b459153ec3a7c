"""The synthetic pair, and its output by plain decoding, without batching or speculation."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.synthetic import next_token
from testbed.ue.drafters.synthetic import SyntheticDrafter

VOCAB, HIDDEN = 40, 8
ENDS = frozenset({0})


def engine() -> SyntheticEngine:
    """A target of `VOCAB` tokens."""
    return SyntheticEngine(vocab_size=VOCAB, hidden_size=HIDDEN)


def drafter(alpha: float, max_sequences: int = 1024) -> SyntheticDrafter:
    """A drafter that agrees with the target with probability `alpha`."""
    return SyntheticDrafter(vocab_size=VOCAB, alpha=alpha, hidden_size=HIDDEN, max_sequences=max_sequences)


def text_of(ids: Sequence[int]) -> str:
    """Ids as text."""
    return " ".join(map(str, ids))


def greedy(ids: Sequence[int], room: int, ends: Collection[int] = ENDS) -> list[int]:
    """The target's continuation, one token after the other."""
    text = list(ids)
    while len(text) < len(ids) + room:
        text.append(next_token(text, VOCAB, 0))
        if text[-1] in ends:
            break
    return text[len(ids) :]
