"""Text of ids that arrive one by one: that of all ids, in whole characters, cut before stop strings."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from testbed.protocols.detokeniser import Detokeniser
from testbed.ue.api.stop_strings import StopStrings, Transcript


def bytewise() -> Tokenizer:
    """A tokenizer with one token per byte and a special token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def with_fallback() -> Tokenizer:
    """A tokenizer as Llama 2's: words with a leading ▁, and bytes for unknown text."""
    words = ["<unk>", "▁apples", "▁two", "s", "▁"]
    vocab = {token: i for i, token in enumerate([*words, *(f"<0x{b:02X}>" for b in range(256))])}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


BYTES, FALLBACK = bytewise(), with_fallback()
END = 256


def pieces(tokenizer: Tokenizer, ids: Sequence[int], prompt: Sequence[int] = ()) -> list[str]:
    detokeniser = Detokeniser(tokenizer, prompt)
    return [*(detokeniser.push(i) for i in ids), detokeniser.flush()]


@given(st.text(max_size=40))
def test_pieces_of_a_text_are_whole_characters_and_all_of_it(text: str) -> None:
    ids = BYTES.encode(text).ids
    found = pieces(BYTES, ids)
    assert "".join(found) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in found)
        ends = list(itertools.accumulate(len(c.encode()) for c in text))
        assert [i + 1 for i, piece in enumerate(found) if piece] == ends  # each as soon as its last byte is there


@given(st.lists(st.integers(0, 256), max_size=40))
def test_pieces_of_any_bytes_add_up_to_what_the_tokenizer_makes_of_them(ids: list[int]) -> None:
    assert "".join(pieces(BYTES, ids)) == BYTES.decode(ids, skip_special_tokens=True)


def test_a_character_of_bytes_between_words_is_not_split() -> None:
    ids = [1, *(FALLBACK.token_to_id(f"<0x{b:02X}>") for b in "🍎é".encode()), 2, 3]
    found = pieces(FALLBACK, ids, prompt=[2])
    assert "".join(found) == " apples🍎é twos"
    assert [p for p in found if p] == [" apples", "🍎", "é", " two", "s"]


def test_the_first_word_keeps_the_space_before_it() -> None:
    assert FALLBACK.decode([1]) == "apples"
    assert pieces(FALLBACK, [1], prompt=[2, 3])[0] == " apples"


class Counting:
    """A tokenizer of bytes that counts the ids that it decodes."""

    def __init__(self) -> None:
        self.decoded = 0

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        self.decoded += len(ids)
        return BYTES.decode(list(ids), skip_special_tokens=skip_special_tokens)


def test_an_output_without_whole_characters_takes_time_in_proportion_to_its_length() -> None:
    counting, count = Counting(), 5000
    half = BYTES.encode("é").ids[0]
    assert "".join(pieces(counting, [half] * count)) == "\ufffd" * count  # type: ignore[arg-type]
    assert counting.decoded < 20 * count


CUTS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)


def first_end(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Brute force: the shortest prefix that ends with a stop string, without the longest stop string at its end."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


@given(st.text("abc", max_size=20), CUTS, st.lists(st.integers(0, 20), max_size=6))
def test_stop_strings_cut_at_the_first_end_however_the_text_comes(text: str, stops: list[str], at: list[int]) -> None:
    bounds = sorted({0, len(text), *(min(i, len(text)) for i in at)})
    cut, shown = StopStrings(stops), ""
    wanted, found = first_end(text, stops)
    for a, b in itertools.pairwise(bounds):
        shown += cut.push(text[a:b])
        assert wanted.startswith(shown)  # nothing was shown that had to be taken back
    shown += cut.flush()
    assert (shown, cut.found) == (wanted, found)


def test_only_what_may_begin_a_stop_string_is_held() -> None:
    cut = StopStrings(["\n\n", "###"])
    assert [cut.push(t) for t in ("one\n", "two#", "#", "3\n", "\nfour", "five")] == ["one", "\ntwo", "", "##3", "", ""]
    assert cut.found


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_a_transcript_counts_the_tokens_up_to_the_end_of_the_stop_string(size: int) -> None:
    ids = BYTES.encode("12 é### and more").ids
    transcript = Transcript(BYTES, BYTES.encode("x").ids, ["é##"], [END])
    shown = "".join(transcript.push(ids[i : i + size]) for i in range(0, len(ids), size)) + transcript.flush()
    assert (shown, transcript.tokens, transcript.stopped) == ("12 ", 7, True)


def test_the_end_token_counts_but_says_nothing() -> None:
    visible = Tokenizer.from_str(BYTES.to_str())
    transcript = Transcript(visible, [], ["zz"], [visible.token_to_id("!")])
    shown = transcript.push(visible.encode("az!").ids) + transcript.flush()
    assert (shown, transcript.tokens, transcript.stopped) == ("az", 3, False)
