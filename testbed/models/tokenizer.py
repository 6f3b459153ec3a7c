"""Tokenizer of the bundled pair: byte-level BPE with single-digit tokens, trained on the word problems."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from testbed.errors import ModelError
from testbed.models.problems import generate

VOCAB_SIZE = 1024
END = "<|end|>"
PROMPT = "Question: {question}\nAnswer:"


def train_tokenizer(seed: int, problems: int = 4000) -> Tokenizer:
    """Train the tokenizer on `problems` training problems of each narrator."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (
        f"{PROMPT.format(question=p.question)} {p.answer}"
        for narrator in ("target", "drafter")
        for p in itertools.islice(generate("train", seed, narrator), problems)
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def end_of(tokenizer: Tokenizer) -> int:
    """Id of the end token, which is also the padding.

    Raises:
        ModelError: the tokenizer has none.
    """
    if (end_id := tokenizer.token_to_id(END)) is None:
        raise ModelError(f"the tokenizer has no {END}: it is none that `testbed models train` made")
    return int(end_id)


def save_tokenizer(tokenizer: Tokenizer, directory: Path, max_positions: int) -> None:
    """Write the tokenizer files that transformers, vLLM and the UE read."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END,
        "model_max_length": max_positions,
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
