"""Bundled chat prompts, written for this project: requests of many kinds about everyday subjects, to distill drafters
on and to decode without files of others.
"""

from __future__ import annotations

import itertools
import random

THINGS = (
    "a bicycle", "a compass", "a dishwasher", "a heat pump", "a lighthouse", "a microscope", "a piano", "a radio",
    "a refrigerator", "a sailing boat", "a solar panel", "a steam engine", "a telescope", "a thermometer", "a volcano",
    "a wind turbine", "an elevator", "an electric motor", "bread dough", "cloud formation", "compound interest",
    "fermentation", "glass making", "gravity", "the immune system", "the internet", "the moon's phases", "the tides",
    "photosynthesis", "public key encryption", "rainbows", "recycling", "satellite navigation", "sleep", "soap",
    "the human ear", "the stock market", "vaccination", "the water cycle", "wireless charging",
)  # fmt: skip
ACTIVITIES = (
    "bake a simple bread", "clean a keyboard", "draw a portrait", "find a new flat", "give a short speech",
    "grow tomatoes on a balcony", "learn a new language", "learn to swim as an adult", "make a monthly budget",
    "make good coffee", "organise a birthday party", "pack for a week of hiking", "paint a room",
    "plan a small wedding", "prepare for a job interview", "read more books", "remember names", "repair a flat tyre",
    "save electricity at home", "sharpen a kitchen knife", "start a blog", "start running", "take better photos",
    "teach a dog to sit", "train for a marathon", "write a good e-mail",
)  # fmt: skip
SUBJECTS = (
    "a cat who is afraid of mice", "a clock that runs backwards", "a forgotten library", "a garden in winter",
    "a journey by night train", "a lost letter", "a market in the rain", "a robot's first day at school",
    "a small harbour town", "an old bridge", "autumn leaves", "friendship", "the first snow", "the last bus home",
    "the sound of the sea", "two rival bakers",
)  # fmt: skip
PAIRS = (
    "a comet and an asteroid", "a crocodile and an alligator", "a lake and a pond", "a virus and a bacterium",
    "butter and margarine", "climate and weather", "coffee and tea", "concrete and cement", "copper and aluminium",
    "diesel and petrol engines", "fiction and non-fiction", "jam and marmalade", "mean and median", "mass and weight",
    "novels and short stories", "RAM and a hard disk", "renting and buying a home", "speed and velocity",
    "stalactites and stalagmites", "trains and trams", "TCP and UDP", "violins and violas",
)  # fmt: skip
PLACES = (
    "a desert", "a fishing village", "a large port", "a mountain valley", "a rainforest", "a small island",
    "a university town", "an old mining town", "the Arctic", "the Mediterranean coast",
)  # fmt: skip
FUNCTIONS = (
    "checks whether a word is a palindrome", "converts Celsius to Fahrenheit", "counts the vowels of a text",
    "finds the largest number of a list", "merges two sorted lists", "removes duplicates from a list",
    "returns the n-th Fibonacci number", "reverses the words of a sentence", "sums the digits of a number",
    "tells whether a year is a leap year",
)  # fmt: skip
SENTENCES = (
    "Because of the fact that it was raining, we made the decision to stay at home.",
    "He don't know where the keys is.", "I am writing to you in order to ask about the flat.",
    "Me and my sister has went to the cinema yesterday.", "Please find attached the document you asked for it.",
    "The meeting what was planned for Monday is moved on Friday.", "There is many reasons why people moves to cities.",
    "We was very happy that you come to our party.",
)  # fmt: skip

READERS = (
    "a beginner", "a busy manager", "a curious grandmother", "a new colleague", "a school class", "a sceptical friend",
    "a ten-year-old child", "an engineer",
)  # fmt: skip
FORMS = (
    "a dialogue", "a haiku", "a letter", "a limerick", "a newspaper article", "a short fable", "a short story",
    "a song", "an advertisement", "an e-mail",
)  # fmt: skip

KINDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "Explain in simple words how {} works.": (THINGS,),
    "What is the history of {}? Answer in one paragraph.": (THINGS,),
    "Give three interesting facts about {}.": (THINGS,),
    "What is a common misunderstanding about {}?": (THINGS,),
    "Write four quiz questions about {}, with their answers.": (THINGS,),
    "Explain {} to {}.": (THINGS, READERS),
    "Write {} about {}.": (FORMS, (*SUBJECTS, *THINGS)),
    "How do I {}? Give me a list of steps.": (ACTIVITIES,),
    "I want to {}, but I have little time. What do you advise?": (ACTIVITIES,),
    "What mistakes do beginners make when they {}?": (ACTIVITIES,),
    "Write a short message in which you ask a friend for help to {}.": (ACTIVITIES,),
    "What do I need to buy before I {}?": (ACTIVITIES,),
    "Write a short poem about {}.": (SUBJECTS,),
    "Write the first paragraph of a story about {}.": (SUBJECTS,),
    "Suggest five titles for a book about {}.": (SUBJECTS,),
    "What is the difference between {}?": (PAIRS,),
    "Compare {} in a short table.": (PAIRS,),
    "Describe daily life in {}.": (PLACES,),
    "What should a visitor bring to {}?": (PLACES,),
    "Write a Python function that {}, and explain it.": (FUNCTIONS,),
    "How would you test a program that {}?": (FUNCTIONS,),
    "Correct this sentence and say what was wrong: {}": (SENTENCES,),
    "Rewrite this sentence so that it is more polite: {}": (SENTENCES,),
}
"""What is asked, and the subjects that it is asked about, one tuple for each pair of braces."""


def chat_prompts(seed: int) -> list[str]:
    """All prompts, each of them once, in an order that the seed decides."""
    prompts = [kind.format(*chosen) for kind, lists in KINDS.items() for chosen in itertools.product(*lists)]
    random.Random(f"chat/{seed}").shuffle(prompts)
    return prompts
