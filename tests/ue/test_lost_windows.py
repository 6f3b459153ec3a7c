"""Windows of a stream that do not arrive: the stream goes on, after a short silence at most."""

from __future__ import annotations

import itertools

import pytest

from testbed.protocols.codec import AnyArray
from testbed.protocols.messages import Draft, Message, Open
from testbed.ue.client import Client
from tests.support.copying import own
from tests.ue.test_model_streams import PROMPT, Ue, serve


def counted_opens(monkeypatch: pytest.MonkeyPatch, lost: tuple[int, ...] = ()) -> list[Message]:
    """The `Open` messages sent from now on; the windows of these numbers, in order of sending, do not arrive."""
    send, opens, numbers = Client.send, list[Message](), itertools.count(1)

    async def lose(ue: Client, message: Message, arrays: dict[str, AnyArray] | None = None) -> int:
        opens.extend([message] if isinstance(message, Open) else [])
        if isinstance(message, Draft) and arrays is not None and len(arrays["ids"]) and next(numbers) in lost:
            return 0
        return await send(ue, message, arrays)

    monkeypatch.setattr(Client, "send", lose)
    return opens


@pytest.mark.parametrize("lost", [(1,), (3, 20), (3, 20, 40)])
def test_a_lost_window_before_others_makes_no_waiting_stream_stand_still(
    lost: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cost two seconds, until the UE opened the session again: the target waited for what it could not join."""
    opens = counted_opens(monkeypatch, lost)
    (records,), _ = serve([Ue(lookahead="stream", window=32, draft_s=0.1)], 0.05)
    (found,) = records
    assert found.token_ids == own(PROMPT, 100, 0.05)
    assert len(opens) == 1
    assert max((record.end_s or 0.0) - (record.begin_s or 0.0) for record in found.rounds) < 2.0


@pytest.mark.parametrize("token_s", [2.05, 3.0, 7.0])
def test_a_stream_that_is_slow_is_not_opened_again_for_every_token(
    token_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens = counted_opens(monkeypatch)
    (records,), _ = serve([Ue(alpha=1.0, window=1, draft_s=0.01, tokens=12)], 0.05, pass_s=token_s)
    assert records[0].token_ids == own(PROMPT, 12, 0.05)
    assert len(opens) <= 4
