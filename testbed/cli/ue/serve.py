"""`testbed ue serve`: a local OpenAI-compatible endpoint."""

from __future__ import annotations

import os
import sys

from testbed.cli.options import ReadyJson, configured
from testbed.cli.output import claim_stdout, note, print_json
from testbed.ue.api.config import EndpointConfig


@configured(EndpointConfig)
def serve(config: EndpointConfig, as_json: ReadyJson = False) -> None:
    """Serve the OpenAI API (/v1/models, /v1/completions, /v1/chat/completions) with a BS until Ctrl-C.

    Examples:

        testbed ue serve --bs tcp://192.0.2.7:5555 --keys orin-1

        testbed ue serve --drafter small.gguf --tokenizer ./large --protocol sh,split

        testbed ue serve --host 0.0.0.0 --token-file key.txt
    """
    from testbed.experiments.inputs.state import channel_state, check_csi
    from testbed.models.bundle import bundled
    from testbed.ue.api.serve import serve as run

    check_csi(config.csi)
    bundle = bundled()
    stdout = claim_stdout() if as_json else sys.stdout

    def ready(url: str, model: str) -> None:
        if as_json:
            print_json({"ready": True, "url": url, "pid": os.getpid(), "model": model}, stdout)
        note(f"serving {model} at {url}/v1 (pid {os.getpid()}); Ctrl-C stops it")

    run(
        config,
        (bundle.drafter, bundle.tokenizer),
        lambda client, clock: channel_state(config.csi, client, clock),
        ready,
    )
