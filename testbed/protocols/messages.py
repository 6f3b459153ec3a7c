"""The messages between UE and BS: frame 0 of every ZeroMQ message, one msgpack array a message.

Arrays (ids, hidden states, positions) follow as raw frames; `arrays` in the header names each one and states its
dtype and shape. Integers count from 0; times are durations in seconds on the sender's own monotonic clock.
"""

from __future__ import annotations

from typing import Union

import msgspec

from testbed.channel.csi import Csi

VERSION = 5
"""Of this wire format; `Hello` and `Welcome` must agree on it."""
NO_HINT = -1
"""In place of a window."""


class Array(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What one raw frame holds."""

    name: str
    dtype: str
    """Little-endian: i4, f2, f4, u1 or u2."""
    shape: tuple[int, ...]


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """Base of all messages."""

    arrays: tuple[Array, ...] = ()


# ---------------------------------------------------------------- UE → BS


class Hello(Message, frozen=True):
    """First words of a UE; answered by `Welcome` or `Fault`."""

    version: int
    tokenizer: str
    """Fingerprint of the tokenizer (`protocols.vocabulary`); empty where there is none."""
    vocab_size: int
    """Ids that the drafter may draft."""


class Open(Message, frozen=True):
    """Start a session, or start it anew after a loss; frame `ids`: committed prefix, prompt included, i4 [n]."""

    session: int
    protocol: str
    threshold: float
    """The decision head's θ in [0, 1]; 0 rejects every mismatch."""
    hidden_size: int
    """Of the drafter."""
    max_tokens: int = 0
    """For `target-only`, and with hints: tokens to decode."""
    temperature: float = 0.0
    """Of protocols that sample, and of `target-only`; 0: greedy. See `protocols.sampling.Sampling`."""
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    """Of the request's random numbers, in [0, 2⁶⁴)."""
    drafter: str = ""
    """Fingerprint of the drafter's weights (`testbed.fingerprints`): judges that know one drafter refuse others."""
    speed_tps: float | None = None
    """Tokens a second that the UE wants to be promised, its service class; None: no promise."""
    hidden_bits: int = 16
    """Bits of an element of the hidden states that come up: 16, 8 or 4 (`protocols.quantise`)."""
    window: int = 0
    """The most that this UE drafts in a round, where it goes by the windows that verdicts hint; 0: it wants no hints.
    Then `max_tokens` counts the tokens to come, and the BS may decode on alone."""
    alone: bool = False
    """With hints: the BS is to decode alone from the start, as the last hint said."""
    round: int = 0
    """With `alone`: number of the first round."""


class Draft(Message, frozen=True):
    """One drafted window; frames: `ids` i4 [K] and what the protocol adds."""

    session: int
    round: int
    base_len: int
    """Length of the committed prefix that the window continues."""
    csi: Csi | None = None
    draft_s: float = 0.0
    """Time since the last verdict; in a first round, since the request began."""
    network_s: float = 0.0
    """Time that the last round's messages spent on the link, as far as the UE can tell (WISP eq. 6); 0: not known."""


class Hidden(Message, frozen=True):
    """Answer to `NeedHidden`: m hidden states, in the order of the positions asked for; frame `hidden`: f2
    [m, hidden_size], or packed u1 and a frame `scale`: f2 [m] where `Open.hidden_bits` is below 16.
    """

    session: int
    round: int


class Close(Message, frozen=True):
    """End of a session; not answered."""

    session: int


class Ping(Message, frozen=True):
    """RTT handshake; answered by `Pong` at once."""

    token: int


# ---------------------------------------------------------------- BS → UE


class Welcome(Message, frozen=True):
    """Answer to `Hello`: what this BS serves and allows."""

    version: int
    model: str
    hidden_size: int
    """Of the target."""
    vocab_size: int
    """Ids that the target may choose."""
    end_ids: tuple[int, ...]
    """Ids that end an output, by the target's generation config."""
    protocols: tuple[str, ...]
    max_window: int
    max_positions: int
    """Prefix + window + 1 may not be more."""
    weights: str = ""
    """Fingerprint of the target (`testbed.fingerprints`)."""
    judge: str = ""
    """What keeps mismatches: the judge's kind, and fingerprint of its head."""


class Opened(Message, frozen=True):
    """The session stands; `length` committed tokens are known."""

    session: int
    length: int


class NeedHidden(Message, frozen=True):
    """Hidden states wanted; frame `positions`: u1, positions in the window packed at ceil(log2(K+1)) bits each."""

    session: int
    round: int
    count: int
    """Number of positions asked for."""


class Verdict(Message, frozen=True):
    """Outcome of a round: the first `accepted` drafted tokens are committed, then `token` (correction or bonus). Where
    `split` leaves `token` to the UE, frame `target` f2 [V] has the target's distribution there.
    """

    session: int
    round: int
    accepted: int
    token: int
    """-1: the UE draws it."""
    candidates: int
    """Positions whose drafted token was not the target's argmax."""
    queried: int
    """Positions whose hidden states were asked for; of `split`, 1 where the target's distribution comes down."""
    gap: float
    """Logit of `token` minus logit of the drafted token that it replaces; of a token that replaces none (a bonus,
    target-only) minus the next best logit. Where `token` was drawn: the argmax's in place of its own."""
    batch_size: int
    """Requests in the pass that verified the round."""
    queue_s: float
    verify_s: float
    judge_s: float
    bs_s: float
    """From receipt to reply, waiting for `Hidden` left out."""
    window: int = NO_HINT
    """The most that the UE should draft next; 0: the BS decodes on alone, and the next verdict comes by itself.
    `NO_HINT`: the session wants no hints, or the BS gives none, and things stay as they are."""
    kept: int = 0
    """Candidates among the `accepted`: mismatches that the judge let stay."""


class Resync(Message, frozen=True):
    """The session is unknown here: open it again with the committed prefix."""

    session: int
    reason: str = ""
    """What became of it, where the BS knows."""


class Busy(Message, frozen=True):
    """Refused for now."""

    session: int
    reason: str
    retry_s: float
    speed_tps: float | None = None
    """The speed asked for cannot be promised: the fastest class that can, 0: none. None: that is not the reason."""
    round: int | None = None
    """The round that is refused, whose session stands; None: the session is."""


class Fault(Message, frozen=True):
    """The message could not be taken; `session` is -1 where none is meant."""

    session: int
    reason: str


class Pong(Message, frozen=True):
    """Answer to `Ping`."""

    token: int
    time_s: float = 0.0
    """When it was answered, on the BS's own monotonic clock: what the offset between both clocks is estimated from."""


Uplink = Union[Hello, Open, Draft, Hidden, Close, Ping]  # noqa: UP007 (msgspec reads it at run time, on 3.10 too)
Downlink = Union[Welcome, Opened, NeedHidden, Verdict, Resync, Busy, Fault, Pong]  # noqa: UP007
