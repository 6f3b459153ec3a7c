"""Configuration of `testbed latency measure`."""

from __future__ import annotations

from typing import Annotated, Literal

from testbed import fields
from testbed.errors import BadInput
from testbed.experiments.latency.virtual_config import VirtualLoadConfig
from testbed.options import option

REAL = ("dataset", "max_tokens", "prefill", "engine", "model", "dtype", "drafter", "tokenizer", "pace")
"""Options of real base stations alone."""


class LoadConfig(VirtualLoadConfig, frozen=True, kw_only=True):
    """Configuration of `testbed latency measure`.

    Raises:
        BadInput: values out of their range.
    """

    kind: Literal["real", "virtual"] = "real"
    windows: Annotated[
        tuple[int, ...],
        option("Draft windows K, separated by commas; 0 for the target alone.", least=0, most=256, panel="Series"),
    ] = (0, 2, 4, 8)
    alphas: Annotated[
        tuple[float, ...],
        option("Acceptance rates of replayed drafts; none for the real drafter.", least=0, most=1, none="none"),
    ] = (0.8,)
    draft_ms: Annotated[
        float | None,
        option(
            "Drafting time of a replayed token. Default: the profile's with --virtual, else 2; 0: free drafting.",
            least=0,
            unit="ms",
        ),
    ] = None
    rates: Annotated[
        int, option("Loads between one request at a time and the ceiling.", least=1, most=1000, panel="Load")
    ] = 9
    requests: Annotated[int, option("Requests per load and repeat.", least=5, most=10**6)] = 60
    repeats: Annotated[
        int,
        option(
            "Repeats of all series, each in its own order and with arrivals of its own; intervals need two.", least=1
        ),
    ] = 3
    at_once: Annotated[int, option("Concurrent requests while the ceiling is measured.", least=2, most=10**4)] = 32
    seed: Annotated[int, option("Seed of arrivals and of replayed drafts.", least=0)] = 0
    dataset: fields.Dataset = "bundled:test"
    max_tokens: fields.MaxTokens = 256
    prefill: Annotated[
        int | None, option("Tokens of every prompt, drawn at random. Default: the data set's prompts.", least=1)
    ] = None
    engine: fields.Engine = "vllm"
    model: fields.Target = None
    dtype: fields.Dtype = "float32"
    drafter: fields.DrafterFile = None
    tokenizer: fields.Tokenizer = None
    pace: fields.Pace = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.windows:
            raise BadInput("give one window or more, each 0 or more")
        if self.kind == "virtual" and not self.alphas:
            raise BadInput("virtual time has no real drafter: give --alphas")

    def check_kind(self) -> None:
        """Check that no option is given that a measurement of this kind ignores.

        Raises:
            BadInput: there is one.
        """
        self.check_used(self.kind, REAL, VirtualLoadConfig.__struct_fields__)

    @property
    def series(self) -> list[tuple[int, float | None]]:
        """Windows and imposed acceptance rates; the target alone once."""
        found: list[tuple[int, float | None]] = []
        for window in self.windows:
            found += [(0, None)] if window == 0 else [(window, alpha) for alpha in self.alphas or (None,)]
        return found
