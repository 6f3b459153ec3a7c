"""Texts of unused sequences: which of them a new text continues."""

from __future__ import annotations

from testbed.llama.kept import SHORTER, TAIL, KeptTexts

TEXT = list(range(1000, 1200))


def kept() -> KeptTexts:
    texts = KeptTexts()
    texts.keep(3, TEXT, "a")
    return texts


def test_a_text_that_grew_is_found_up_to_where_it_differs() -> None:
    texts = kept()
    assert texts.grown([*TEXT, 1, 2], "a") == (3, 200)
    assert texts.grown([*TEXT[:-TAIL], *range(TAIL)], "a") == (3, 200 - TAIL)
    assert texts.grown([*TEXT[: -TAIL - 1], *range(TAIL)], "a") is None
    assert texts.grown(TEXT, "a") == (3, 199), "the last id is computed"
    assert texts.grown(TEXT[: 1 - SHORTER], "a") == (3, 200 - SHORTER)
    assert texts.grown(TEXT[:-SHORTER], "a") is None, "a prompt that is repeated without its output"


def test_texts_of_others_are_not_found() -> None:
    assert kept().grown([*TEXT, 1], "b") is None


def test_short_texts_need_half_in_common() -> None:
    texts = KeptTexts()
    texts.keep(0, [1, 2, 3, 4])
    assert texts.grown([1, 9, 9, 9, 9]) is None
    assert texts.grown([1, 2, 9, 9, 9]) == (0, 2)
    assert KeptTexts().grown([1]) is None and texts.grown([1]) is None


def test_the_longest_is_taken_and_gone() -> None:
    texts = kept()
    texts.keep(1, TEXT[:-10], "a")
    assert texts.places() == [3, 1] and len(texts) == 2
    assert texts.grown([*TEXT, 7], "a") == (3, 200)
    assert texts.take(3).tolist() == TEXT
    assert texts.grown([*TEXT, 7], "a") == (1, 190) and 3 not in texts
