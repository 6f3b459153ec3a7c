"""Verification by equality: ids up; the first position that differs from the target's token ends the window."""

from __future__ import annotations

import numpy as np

from testbed.channel.cost import Payload, Sizes, position_bits
from testbed.errors import ProtocolError
from testbed.protocols.base import Drafted, RoundProtocol, Window, expect_names, read_ids
from testbed.protocols.codec import AnyArray
from testbed.protocols.quantise import FULL_BITS


class Greedy(RoundProtocol):
    """K ids up, position and token down: the base protocol as it stands."""

    kind = "greedy"
    about = "ids up; the first token that differs from the target's ends the window"


class Coupled(Greedy):
    """Greedy verification of samples: both sides choose tokens with the same noise (`protocols.sampling.Coupling`)."""

    kind = "coupled"
    about = "as greedy, at any temperature: UE and BS sample with shared noise"
    coupled = True


class UncertaintySkip(Greedy):
    """Verification only where the drafter is unsure: a window ends with the first token of which it is not sure; that
    one is verified, those before it are accepted as they are. The output is not the target's own: a baseline, after
    U-HLM (arXiv 2412.12687), which uploads one token at a time and samples.
    """

    kind = "skip"
    about = "as greedy, but tokens of which the drafter is sure are accepted unchecked (lossy)"
    skips = True

    def uplink(self, drafted: Drafted) -> dict[str, AnyArray]:
        """`ids` i4 [K], `unchecked` u2 [1]: the number of tokens at the beginning that are accepted unchecked."""
        return {"ids": drafted.ids, "unchecked": np.array([drafted.unchecked], np.uint16)}

    def window(self, arrays: dict[str, AnyArray], hidden_size: int, hidden_bits: int = FULL_BITS) -> Window:
        """Ids, and how many of them are accepted unchecked."""
        expect_names(arrays, "ids", "unchecked")
        ids, unchecked = read_ids(arrays, least=0), arrays["unchecked"]
        if unchecked.dtype != np.uint16 or unchecked.shape != (1,) or unchecked[0] > len(ids):
            raise ProtocolError(f"unchecked must be u2 [1], {len(ids)} at most")
        return Window(ids, None, unchecked=int(unchecked[0]))

    def payload(self, window: int, queried: int, sizes: Sizes) -> Payload:
        """K·b_id and the number of unchecked tokens up."""
        whole = super().payload(window, queried, sizes)
        return whole._replace(uplink_bits=whole.uplink_bits + position_bits(window))
