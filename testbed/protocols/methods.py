"""Methods of a run: the protocols, and what can be named in their place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec.structs import replace

from testbed.channel.cost import Sizes
from testbed.errors import BadInput
from testbed.protocols import PROTOCOLS, TARGET_ONLY
from testbed.protocols.sampling import FULL_BITS, GREEDY, Sampling

Ahead = int | Literal["stream"] | None
"""Lookahead: 0, 1, as far as it pays in a stream, or None: chosen."""
COLOCATED = "colocated"
AUTO = "auto"


class RunMethod(NamedTuple):
    """A method of a run, and what the rest of the program asks about it."""

    kind: str
    about: str
    judged: bool = False
    """Whether a judge may keep mismatched tokens, so that θ and the hidden states' bits matter."""
    sampled: bool = False
    """Whether tokens are drawn at a temperature above 0."""
    coupled: bool = False
    """Whether they are always chosen by coupled sampling."""
    blockwise: bool = False
    """Whether its windows can be verified as a block."""
    skips: bool = False
    """Whether tokens of which the drafter is sure are accepted unchecked, with θ > 0."""
    on_bs: bool = False
    """Whether both models run on the BS, with no link between them."""
    drafts: bool = True
    """Whether tokens are drafted; otherwise the target decodes alone."""

    @property
    def looks_ahead(self) -> bool:
        """Whether its windows can be drafted before the verdict of the one before is there."""
        return self.drafts and not self.on_bs and not self.sampled

    def exact(self, threshold: float, lossless_judge: bool = False) -> bool:
        """Whether its outputs must equal the target's own, at this θ."""
        return threshold == 0 or not (self.skips or (self.judged and not lossless_judge))

    @property
    def uploads(self) -> bool:
        """Whether draft probabilities are uploaded."""
        return self.sampled and self.drafts

    def sampling(self, asked: Sampling) -> Sampling:
        """How its tokens are sampled in a run with these options."""
        if not self.uploads:
            asked = replace(asked, q_top=0, q_bits=FULL_BITS)
        if asked.greedy:
            return replace(GREEDY, q_top=asked.q_top, q_bits=asked.q_bits)
        asked = replace(asked, block=asked.block and self.blockwise)
        if self.coupled or self.uploads:
            return replace(asked, coupled=self.coupled)
        return asked if self.sampled or (self.judged and asked.coupled) else GREEDY


OTHERS = (
    RunMethod(TARGET_ONLY, "the target alone at the BS, its tokens streamed to the UE", sampled=True, drafts=False),
    RunMethod(COLOCATED, "greedy speculation with both models at the BS", on_bs=True),
    RunMethod(AUTO, "fh or sh for each request, by the channel state", judged=True),
)


def methods() -> dict[str, RunMethod]:
    """All methods by name, protocols of installed packages included."""
    same = ("kind", "about", "judged", "sampled", "coupled", "blockwise", "skips")
    protocols = (RunMethod(**{name: getattr(one, name) for name in same}) for one in PROTOCOLS.values())
    return {method.kind: method for method in (*OTHERS, *protocols)}


def run_method(name: str) -> RunMethod:
    """The method of that name.

    Raises:
        BadInput: unknown name; the message lists the known ones.
    """
    known = methods()
    if name not in known:
        raise BadInput(f"unknown protocol {name!r}; known: {', '.join(known)}")
    return known[name]


def check_lookahead(lookahead: Ahead, names: Sequence[str]) -> None:
    """Refuse a lookahead that none of these methods has.

    Raises:
        BadInput: none has it.
    """
    if lookahead and not any(run_method(name).looks_ahead for name in names):
        raise BadInput(f"lookahead is for windows without sampling over a link, not for {', '.join(names)}")


def check_sampling(asked: Sampling, names: Sequence[str]) -> None:
    """Refuse block verification, or sparse draft distributions, where none of these methods has it.

    Raises:
        BadInput: none has it.
    """
    uses = (
        ("block verification is", asked.block, [kind for kind, one in methods().items() if one.blockwise]),
        ("q-top and q-bits are", asked.packed, [kind for kind, one in methods().items() if one.uploads]),
    )
    for what, wanted, able in uses:
        if wanted and not {run_method(name).kind for name in names} & set(able):
            raise BadInput(f"{what} for {', '.join(able)}, not for {', '.join(names)}")


def check_temperature(asked: Sampling, names: Sequence[str]) -> None:
    """Refuse a temperature where all of these methods decode greedily. Not for sweeps, some of whose points may.

    Raises:
        BadInput: all do, or top-k or top-p are given at temperature 0.
    """
    if asked.greedy and (asked.top_k or asked.top_p < 1):
        raise BadInput("top-k and top-p need a temperature above 0")
    if not asked.greedy and all(run_method(name).sampling(asked).greedy for name in names):
        able = ", ".join(kind for kind, one in methods().items() if not one.sampling(asked).greedy)
        raise BadInput(f"a temperature is for {able} and for coupled sampling, not for {', '.join(names)}")


def round_trips(protocol: str, queried: int) -> int:
    """Round trips of a round with `queried` positions, as its protocol's `payload` has it; 1 without a protocol."""
    known = PROTOCOLS.get(protocol)
    return known.payload(queried, queried, Sizes(hidden_size=0)).round_trips if known else 1
