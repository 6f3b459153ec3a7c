"""Configuration of `testbed ue serve`."""

from __future__ import annotations

from typing import Annotated

from testbed import fields
from testbed.config import ConnectedConfig
from testbed.options import option


class EndpointConfig(ConnectedConfig, frozen=True):
    """Configuration of `testbed ue serve`."""

    host: Annotated[str, option("Address to listen on; beyond loopback, --token-file is needed.", panel="API")] = (
        "127.0.0.1"
    )
    port: Annotated[int, option("Port to listen on; 0 for a free one.", least=0, most=65535)] = 8001
    token_file: Annotated[str | None, option("File with the API key of clients.", metavar="FILE")] = None
    name: Annotated[str | None, option("Model name in the API. Default: the BS's name for its target.")] = None
    sequences: Annotated[int, option("Requests decoded concurrently.", least=1, panel="Requests")] = 4
    queue: Annotated[int, option("Requests that may wait.", least=0)] = 16
    max_tokens: Annotated[int, option("Output tokens of a request that gives no limit.", least=1)] = 256
    temperature: Annotated[float, option("Temperature of a request that gives none.", least=0)] = 1.0
    context: Annotated[
        int | None, option("Positions per request. Default: the drafter's, at most 8192.", least=1, unit="tokens")
    ] = None
    prompt_format: Annotated[
        str, option("Format of conversations: auto, plain, chat, or a template with {question}.")
    ] = "auto"
    protocols: Annotated[
        tuple[str, ...],
        option(
            "Protocols at temperature 0 (greedy, fh, sh, auto) and above 0 (coupled, rejection, split), separated by a "
            "comma. One of the latter alone serves both.",
            flags=("--protocol",),
            panel="Protocol",
        ),
    ] = ("greedy", "coupled")
    auto_rule: fields.AutoRule = "rtt"
    csi: fields.Csi = "passive"
