"""How a base station's process ends."""

from __future__ import annotations

import pytest

from testbed.bs.serve import serve
from testbed.bs.server import BaseStation
from testbed.config import ServeConfig
from testbed.errors import BadInput, TestbedError


def test_bad_input_while_it_serves_is_no_bad_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options that cannot be used end with exit status 2, after which systemd does not restart it; this does not."""

    async def failing(self: BaseStation) -> None:
        raise BadInput("a round commits something")

    monkeypatch.setattr(BaseStation, "serve", failing)
    ready: list[object] = []
    with pytest.raises(TestbedError, match="the base station failed: a round commits something") as caught:
        serve(ServeConfig(engine="synthetic", bind="tcp://127.0.0.1:*"), lambda *said: ready.append(said))
    assert ready and not isinstance(caught.value, BadInput)
