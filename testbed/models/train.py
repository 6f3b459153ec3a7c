"""Resumable training of the bundled pair from a seed, on CPU or GPU.

Each batch is a function of (seed, narrator, step), so that a resumed run uses the same data as an uninterrupted one.
The learning rate is constant after warm-up, then decays linearly. Matrices are trained with Muon, other parameters
with AdamW.
"""

from __future__ import annotations

import io
import itertools
import pickle
import random
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import LlamaConfig

from testbed.errors import BadInput
from testbed.files import whole_file
from testbed.models import problems
from testbed.models.net import Net
from testbed.models.tokenizer import END, PROMPT, end_of

IGNORED = -100
ROWS = 64
CHUNK = 8
"""Number of batches generated together, whose rows are sorted by length to limit padding."""
DRILL_SHARE = 0.25
DRILLS_PER_ROW = 12
MAX_POSITIONS = 4096
SAVE_EVERY = 100


@dataclass(frozen=True)
class Recipe:
    """Training recipe: model shape, narrator, steps and learning rates."""

    narrator: str
    hidden: int
    layers: int
    heads: int
    ffn: int
    steps: int
    warmup: int = 60
    decay_share: float = 0.25
    muon_lr: float = 0.02
    adam_lr: float = 0.003

    def config(self, vocab: int, end_id: int) -> LlamaConfig:
        """transformers configuration of the shape."""
        return LlamaConfig(
            vocab_size=vocab,
            hidden_size=self.hidden,
            intermediate_size=self.ffn,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.heads,
            max_position_embeddings=MAX_POSITIONS,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=end_id,
            pad_token_id=end_id,
        )

    def rate(self, step: int) -> float:
        """Learning-rate factor at a step: warm-up, plateau, linear decay to zero."""
        decay_from = self.steps * (1 - self.decay_share)
        if step < self.warmup:
            return (step + 1) / self.warmup
        if step < decay_from:
            return 1.0
        return max(0.0, (self.steps - step) / (self.steps - decay_from))


RECIPES = {
    "target": Recipe("target", hidden=192, layers=6, heads=6, ffn=512, steps=2300),
    "drafter": Recipe("drafter", hidden=96, layers=3, heads=3, ffn=256, steps=1400),
}


def _segments(tokenizer: Tokenizer, texts: list[tuple[str, bool]]) -> tuple[list[int], list[int]]:
    """Token ids and labels of (text, whether it is trained on) pieces."""
    ids: list[int] = []
    labels: list[int] = []
    for (_, learned), encoding in zip(texts, tokenizer.encode_batch([t for t, _ in texts]), strict=True):
        ids += encoding.ids
        labels += encoding.ids if learned else [IGNORED] * len(encoding.ids)
    return ids, labels


def _row(
    tokenizer: Tokenizer, rng: random.Random, source: Iterator[problems.WordProblem]
) -> tuple[list[int], list[int]]:
    if rng.random() < DRILL_SHARE:
        facts = list(itertools.islice(problems.drills(rng), DRILLS_PER_ROW))
        return _segments(tokenizer, [piece for ask, reply in facts for piece in ((ask, False), (reply, True))])
    problem = next(source)
    ids, labels = _segments(
        tokenizer, [(PROMPT.format(question=problem.question), False), (f" {problem.answer}", True), (END, True)]
    )
    return ids, labels


def batches(
    tokenizer: Tokenizer, narrator: str, seed: int, first_step: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches from `first_step`: ids and labels, int64 [ROWS, length], with length a multiple of 32."""
    end_id = end_of(tokenizer)
    for chunk in itertools.count(first_step // CHUNK):
        rng = random.Random(f"rows/{narrator}/{seed}/{chunk}")
        source = problems.generate("train", seed * 1_000_003 + chunk, narrator)
        rows = sorted((_row(tokenizer, rng, source) for _ in range(ROWS * CHUNK)), key=lambda row: len(row[0]))
        order = list(range(CHUNK))
        rng.shuffle(order)
        for place, index in enumerate(order):
            if chunk * CHUNK + place < first_step:
                continue
            group = rows[index * ROWS : (index + 1) * ROWS]
            length = -(-max(len(ids) for ids, _ in group) // 32) * 32
            ids = torch.full((ROWS, length), end_id)
            labels = torch.full((ROWS, length), IGNORED)
            for i, (row_ids, row_labels) in enumerate(group):
                ids[i, : len(row_ids)] = torch.tensor(row_ids)
                labels[i, : len(row_labels)] = torch.tensor(row_labels)
            yield ids, labels


def _optimizers(model: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        torch.optim.Muon(matrices, lr=recipe.muon_lr, weight_decay=0.01, adjust_lr_fn="original"),
        torch.optim.AdamW(others, lr=recipe.adam_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def _loss(net: Net, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over the labelled tokens; logits are computed only there."""
    wanted = labels[:, 1:]
    learned = wanted != IGNORED
    logits = net.logits(net.hidden(ids[:, :-1])[learned])
    return nn.functional.cross_entropy(logits.float(), wanted[learned])


def train(
    recipe: Recipe, tokenizer: Tokenizer, checkpoint: Path, seed: int, progress: Callable[[int, float], None]
) -> Net:
    """Train one model of the pair; resume from `checkpoint` if it exists, and save there every `SAVE_EVERY` steps.

    Passes run in bfloat16, or in float32 on a CPU that would emulate bfloat16.

    Args:
        progress: called after each step with the steps done and the loss in nats per token.

    Raises:
        BadInput: the checkpoint belongs to another recipe or seed.
    """
    torch.manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" or torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32
    net = Net(recipe.config(tokenizer.get_vocab_size(), end_of(tokenizer)), dtype).to(device)
    optimizers = _optimizers(net, recipe)
    base = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    step = _resume(checkpoint, _identity(recipe, seed), net, optimizers)
    for ids, labels in batches(tokenizer, recipe.narrator, seed, step):
        if step >= recipe.steps:
            break
        for optimizer, lr in zip(optimizers, base, strict=True):
            optimizer.param_groups[0]["lr"] = lr * recipe.rate(step)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = _loss(net, ids.to(device), labels.to(device))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        progress(step, loss.item())
        if step % SAVE_EVERY == 0 or step == recipe.steps:
            _save(checkpoint, _identity(recipe, seed), net, optimizers, step)
    return net


def _identity(recipe: Recipe, seed: int) -> dict[str, Any]:
    """Settings that must match to resume from a checkpoint."""
    return {**asdict(recipe), "seed": seed}


def _resume(checkpoint: Path, identity: dict[str, Any], net: Net, optimizers: list[torch.optim.Optimizer]) -> int:
    if not checkpoint.exists():
        return 0
    try:
        saved = read_whole(checkpoint)
        if saved("identity") != identity:
            raise BadInput(f"{checkpoint} belongs to another recipe or seed; remove it or choose another directory")
        net.load_state_dict(saved("net"))
        for optimizer, state in zip(optimizers, saved("optimizers"), strict=True):
            optimizer.load_state_dict(state)
        step = saved("step")
        if type(step) is not int or not 0 <= step <= identity["steps"]:
            raise ValueError(f"step {step} of {identity['steps']}")
        return step
    except (
        OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, EOFError, pickle.UnpicklingError,
    ) as exc:  # fmt: skip
        reason = str(exc).partition("\n")[0]
        raise BadInput(f"{checkpoint} is damaged ({reason}); remove it, and the training begins again") from exc


def _save(
    checkpoint: Path, identity: dict[str, Any], net: Net, optimizers: list[torch.optim.Optimizer], step: int
) -> None:
    state = {
        "identity": identity, "net": net.state_dict(), "optimizers": [o.state_dict() for o in optimizers], "step": step,
    }  # fmt: skip
    save_whole(state, checkpoint)


def read_whole(checkpoint: Path) -> Callable[[str], Any]:
    """Read a training; PyTorch itself does not compare the content with its checksums.

    Raises:
        OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, EOFError, pickle.UnpicklingError:
            the file is damaged.
    """
    try:
        with zipfile.ZipFile(checkpoint) as archive:
            if any(one.compress_type != zipfile.ZIP_STORED for one in archive.infolist()):
                raise ValueError("it is compressed")
            changed = archive.testzip()
    except zipfile.BadZipFile as exc:
        raise ValueError(str(exc)) from exc
    if changed is not None:
        raise ValueError(f"{changed} does not have its checksum")
    saved: Callable[[str], Any] = torch.load(checkpoint, weights_only=True, map_location="cpu").__getitem__
    return saved


def save_whole(state: dict[str, Any], checkpoint: Path) -> None:
    """Write a training, in one step.

    Raises:
        TestbedError: the file cannot be written; the old one is kept.
    """
    content = io.BytesIO()  # PyTorch's own writer reports a full disk as an internal error
    torch.save(state, content)
    with whole_file(checkpoint) as part:
        part.write_bytes(content.getbuffer())
