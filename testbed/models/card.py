"""Model card of the bundled pair: measured accuracies, and speculative decoding under reference judges."""

from __future__ import annotations

import itertools
import platform
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from testbed.models.evaluate import BatchDecoder, Keep, Speculation, speculate
from testbed.models.problems import FAVOURITE_P, HABIT_SHIFT, WordProblem, generate
from testbed.models.scoring import final_number
from testbed.models.stories import TEMPLATES
from testbed.models.tokenizer import PROMPT, end_of
from testbed.protocols.vocabulary import read_tokenizer

TEST_SEED = 2026
MAX_TOKENS = 220
WINDOW = 32


class Bench:
    """A pair with its tokenizer and test problems."""

    def __init__(self, pair: Path, problems: int) -> None:
        self.tokenizer = read_tokenizer(pair / "target")
        end_id = end_of(self.tokenizer)
        self.target, self.drafter = (
            BatchDecoder.load(pair / "target", end_id),
            BatchDecoder.load(pair / "drafter", end_id),
        )
        self.problems: list[WordProblem] = list(itertools.islice(generate("test", TEST_SEED), problems))
        self.prompts = [self.tokenizer.encode(PROMPT.format(question=p.question)).ids for p in self.problems]

    def result(self, output: list[int]) -> str | None:
        """Final answer of an output; None without one."""
        return final_number(self.tokenizer.decode(output))

    def accuracy(self, outputs: list[list[int]]) -> float:
        """Share of outputs with a correct final answer."""
        return statistics.mean(self.result(o) == str(p.final) for o, p in zip(outputs, self.problems, strict=False))

    def oracle(self, own: list[str | None]) -> Keep:
        """Judge that keeps a drafted token if the target, continuing from it, still reaches its own answer."""

        def keep(indices: list[int], sequences: list[list[int]]) -> list[bool]:
            completions = self.target.complete(sequences, MAX_TOKENS)
            outputs = [s[len(self.prompts[i]) :] + c for i, s, c in zip(indices, sequences, completions, strict=True)]
            return [self.result(o) == own[i] for i, o in zip(indices, outputs, strict=True)]

        return keep


def measure(pair: Path, problems: int, judged: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure a pair on the bundled test problems.

    Args:
        pair: directory with `target/` and `drafter/`.
        problems: number of problems for the accuracies.
        judged: number of problems for the judges, which take a completion per mismatch, and at most `problems`.
        say: receives progress messages.

    Raises:
        ModelError: one of the models cannot be used.
    """
    judged = min(judged, problems)
    bench = Bench(pair, problems)
    say(f"decoding {problems} problems with target and drafter")
    own, drafts = (d.complete(bench.prompts, MAX_TOKENS) for d in (bench.target, bench.drafter))
    some = bench.prompts[:judged]

    def play(name: str, keep: Keep) -> dict[str, Any]:
        say(f"window {WINDOW}, {judged} problems: {name} judge")
        return _summary(bench, speculate(bench.drafter, bench.target, some, WINDOW, MAX_TOKENS, keep))

    results = [bench.result(o) for o in own]
    greedy = play("strict", lambda i, s: [False] * len(i))
    return {
        "problems": problems,
        "judged": judged,
        "window": WINDOW,
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "target_parameters": bench.target.parameters,
        "drafter_parameters": bench.drafter.parameters,
        "vocabulary": bench.tokenizer.get_vocab_size(),
        "positions": int(bench.target.model.config.max_position_embeddings),
        "target_accuracy": bench.accuracy(own),
        "drafter_accuracy": bench.accuracy(drafts),
        "answer_tokens": statistics.mean(map(len, own)),
        "greedy": greedy,
        "oracle": play("oracle", bench.oracle(results)),
        "accept_all": play("accept-all", lambda i, s: [True] * len(i)),
        "target_accuracy_judged": bench.accuracy(own[:judged]),
    }


def _summary(bench: Bench, states: list[Speculation]) -> dict[str, Any]:
    accepted, rejections = sum(s.accepted for s in states), sum(s.rejections for s in states)
    committed = [n for s in states for n in s.committed]
    return {
        "aal": statistics.mean(committed),
        "rounds": len(committed) / len(states),
        "acceptance_cond": accepted / (accepted + rejections) if rejections else 1.0,
        "accuracy": bench.accuracy([s.output for s in states]),
    }


def shortfalls(facts: dict[str, Any]) -> list[str]:
    """Requirements that the pair does not meet."""
    wanted = {
        "target accuracy of at least 0.85": facts["target_accuracy"] >= 0.85,
        "drafter accuracy between 0.20 and 0.65": 0.20 <= facts["drafter_accuracy"] <= 0.65,
        "drafter of at most a sixth of the target": facts["drafter_parameters"] * 6 <= facts["target_parameters"],
        "acceptance_cond between 0.70 and 0.92": 0.70 <= facts["greedy"]["acceptance_cond"] <= 0.92,
        "answers of at least 60 tokens": facts["answer_tokens"] >= 60,
        "at least 2,560 positions": facts["positions"] >= 2560,
        "oracle judge with AAL up by 60 %": facts["oracle"]["aal"] >= 1.6 * facts["greedy"]["aal"],
        "accept-all judge 0.15 less accurate": facts["greedy"]["accuracy"] - facts["accept_all"]["accuracy"] >= 0.15,
    }
    return [name for name, met in wanted.items() if not met]


def render(facts: dict[str, Any]) -> str:
    """The card as Markdown."""
    return f"""# The bundled pair

{_models(facts)}

## Speculative decoding with the pair

{_judges(facts)}

Measured by `testbed models card` on {facts["machine"]}; test problems of seed {TEST_SEED}, disjoint from
the training problems by construction.
"""


def _models(facts: dict[str, Any]) -> str:
    def share(name: str) -> str:
        """A share and half its 95 % interval (normal approximation)."""
        value: float = facts[name]
        return f"{value:.3f} ± {1.96 * (value * (1 - value) / facts['problems']) ** 0.5:.3f}"

    return f"""Two Llama models, trained from scratch by `testbed models train` on arithmetic word problems
({len(TEMPLATES)} event templates, two to six steps, worked answers that end in `#### result`). They are only meant for
trying and testing the testbed without downloads.

| | target | drafter |
|---|---|---|
| parameters | {facts["target_parameters"]:,} | {facts["drafter_parameters"]:,} |
| greedy accuracy, {facts["problems"]} test problems | {share("target_accuracy")} | {share("drafter_accuracy")} |

One tokenizer of {facts["vocabulary"]} tokens (BPE, single digits), {facts["positions"]:,} positions, answers of
{facts["answer_tokens"]:.1f} tokens on average. Training sequences have at most about 320 tokens: longer contexts work,
for timing, but outputs are then meaningless.

Two narrators word the steps of the training answers at random. At each choice of words, a narrator uses its favourite
with probability {FAVOURITE_P}, else a random wording. Target and drafter were trained on different narrators, whose
favourites differ at {HABIT_SHIFT:.0%} of the choices. The models therefore often disagree in words, which is harmless,
and sometimes in digits, which is critical."""


def _judges(facts: dict[str, Any]) -> str:
    rows = "\n".join(
        f"| {name} | {facts[key]['aal']:.2f} | {facts[key]['rounds']:.1f} | {facts[key]['acceptance_cond']:.3f} "
        f"| {facts[key]['accuracy']:.3f} |"
        for name, key in (("strict (greedy)", "greedy"), ("oracle", "oracle"), ("accept all", "accept_all"))
    )
    return f"""Window {facts["window"]}, {facts["judged"]} test problems, greedy decoding in float32. The oracle keeps a
mismatch if the target, continuing from it, still reaches its own answer; accept-all keeps every mismatch.

| judge | AAL | rounds | acceptance_cond | accuracy |
|---|---|---|---|---|
{rows}

The oracle's AAL is {facts["oracle"]["aal"] / facts["greedy"]["aal"]:.2f} times that of greedy; accepting everything
costs {100 * (facts["greedy"]["accuracy"] - facts["accept_all"]["accuracy"]):.1f} points of accuracy."""
