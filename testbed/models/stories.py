"""Data of the word problems: names, items, event templates and wordings of worked steps.

`problems` composes them into questions and answers. Placeholders: ``{name}`` the main person, ``{other}`` a second
person, ``{items}`` the counted items, ``{n}`` the number of an event; in worked steps, ``{a} {b} {c}`` operands and
result, ``{q} {r}`` quotient and remainder.
"""

from __future__ import annotations

from dataclasses import dataclass

NAMES = (
    "Ada", "Ben", "Cora", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ivy", "Jon", "Kira", "Leo", "Mia", "Noah", "Olga",
    "Paul", "Rosa", "Sam", "Tina", "Uwe", "Vera", "Will", "Yara", "Zoe",
)  # fmt: skip

ITEMS = (
    "apples", "books", "cards", "coins", "eggs", "flags", "games", "hats", "keys", "lamps", "maps", "nuts", "pens",
    "plums", "rings", "seeds", "shells", "stamps", "stones", "tiles", "toys", "bricks", "cups", "ropes",
)  # fmt: skip


@dataclass(frozen=True)
class Template:
    """Kind of event: operation, sentence in the question, and the items counted afterwards (None: unchanged)."""

    key: str
    op: str
    text: str
    unit: str | None = None


TEMPLATES = (
    Template("buy", "add", "{name} buys {n} more {items}."),
    Template("gift", "add", "{other} gives {name} {n} {items}."),
    Template("drawer", "add", "{name} finds {n} {items} in a drawer."),
    Template("delivery", "add", "A delivery brings {n} {items}."),
    Template("fair", "add", "{name} wins {n} {items} at a fair."),
    Template("market", "add", "{name} gets {n} {items} at the market."),
    Template("parcel", "add", "A parcel with {n} {items} comes in."),
    Template("swap", "add", "{name} swaps an old bike for {n} {items}."),
    Template("collect", "add", "{name} and {other} collect {n} further {items}."),
    Template("return", "add", "{other} brings back {n} {items} that belong to {name}."),
    Template("give", "sub", "{name} gives {n} {items} to {other}."),
    Template("lose", "sub", "{name} loses {n} {items}."),
    Template("sell", "sub", "{name} sells {n} of the {items}."),
    Template("broken", "sub", "{n} of the {items} break."),
    Template("throw", "sub", "{name} throws {n} old {items} away."),
    Template("borrow", "sub", "{other} borrows {n} {items}."),
    Template("project", "sub", "{name} uses up {n} {items} for a project."),
    Template("river", "sub", "{n} {items} fall into the river."),
    Template("school", "sub", "{name} leaves {n} {items} at school."),
    Template("donate", "sub", "{name} donates {n} {items} to a museum."),
    Template("times", "mul", "Within a year the number of {items} grows to {n} times as many."),
    Template("price", "mul", "All {items} are sold for {n} dollars each.", "dollars"),
    Template("pieces", "mul", "Every one of the {items} is cut into {n} pieces.", "pieces"),
    Template("beads", "mul", "Each of the {items} is traded for {n} beads.", "beads"),
    Template("teams", "mul", "{n} teams with as many {items} each put all of them together."),
    Template("points", "mul", "{name} earns {n} points for each of the {items}.", "points"),
    Template("copies", "mul", "A workshop makes {n} of every one of the {items}, and only these are kept."),
    Template("share", "div", "The {items} are shared equally among {n} friends, and {name} is one of them."),
    Template("boxes", "div", "The {items} are put into {n} equal boxes, and {name} keeps one box."),
    Template("piles", "div", "{name} makes {n} equal piles of the {items} and keeps one pile."),
    Template("bundle", "div", "{name} ties {n} {items} at a time into bundles.", "bundles"),
    Template("rooms", "div", "The {items} are spread evenly over {n} rooms, and one room is counted."),
    Template("exchange", "div", "For {n} {items} one gets a ticket, and {name} hands all of them in.", "tickets"),
    Template("weeks", "div", "The {items} last {n} weeks, the same number every week, and one week is counted."),
    Template("bags", "rest", "{name} packs bags of {n} {items} and keeps only what is left over."),
    Template("shelves", "rest", "Shelves of {n} {items} are filled, and the rest stays with {name}."),
    Template("rows", "rest", "{name} lays rows of {n} {items} and picks up the remaining ones only."),
    Template("crates", "full", "Crates that hold {n} {items} are filled, and full crates are counted.", "crates"),
    Template("trays", "full", "{name} counts how many trays of {n} {items} can be filled.", "trays"),
    Template("sets", "full", "{n} {items} make a set, and only complete sets are counted.", "sets"),
    Template("rival", "gap", "{other} owns {n} {items}, and the difference between the two is what counts."),
    Template("bet", "gap", "{other} has {n} {items}, and the one with more pays out the difference to {name}."),
    Template("larger", "max", "{other} shows {n} {items}, and {name} may keep the larger lot."),
    Template("smaller", "min", "{other} shows {n} {items}, and {name} has to keep the smaller lot."),
)

OPENINGS = (
    "{name} has {n} {items}.",
    "{name} starts with {n} {items}.",
    "There are {n} {items} in the house of {name}.",
    "{name} owns {n} {items}.",
    "At first {name} counts {n} {items}.",
)

QUESTIONS = (
    "How many {items} are there in the end?",
    "How many {items} does {name} end up with?",
    "What is the final number of {items}?",
    "How many {items} is that?",
)

DISTRACTORS = (
    "{other} is {n} years old.",
    "The town has {n} streets.",
    "It takes {n} minutes to get there.",
    "The road is {n} miles long.",
    "{other} reads {n} pages a day.",
    "The bus has {n} seats.",
    "A clock on the wall shows {n} minutes past three.",
    "The shop opened {n} years ago.",
)

CONNECTORS = {
    "first": ("First", "To begin", "At the start", "In the first step"),
    "middle": ("Then", "Next", "After that", "Now", "In the next step"),
    "last": ("Finally", "At last", "In the last step", "Lastly"),
}

STEPS = {
    "add": (
        "the number rises to {a}+{b}={c}",
        "adding {b} gives {a}+{b}={c}",
        "we have {a}+{b}={c}",
        "there are {a}+{b}={c} {items}",
        "{name} gets to {a}+{b}={c}",
    ),
    "sub": (
        "the number falls to {a}-{b}={c}",
        "taking away {b} gives {a}-{b}={c}",
        "we have {a}-{b}={c}",
        "there are {a}-{b}={c} {items}",
        "{name} gets to {a}-{b}={c}",
    ),
    "mul": (
        "the number grows to {a}*{b}={c}",
        "multiplying by {b} gives {a}*{b}={c}",
        "we have {a}*{b}={c}",
        "there are {a}*{b}={c} {items}",
        "{name} gets to {a}*{b}={c}",
    ),
    "div": (
        "the number shrinks to {a}/{b}={c}",
        "dividing by {b} gives {a}/{b}={c}",
        "we have {a}/{b}={c}",
        "there are {a}/{b}={c} {items}",
        "{name} gets to {a}/{b}={c}",
    ),
    "rest": (
        "dividing by {b} gives {q} with remainder {r}, so {c} are left",
        "{a}/{b} is {q} with remainder {r}, so {c} are left",
        "groups of {b} go {q} times into {a} with remainder {r}, so {c} are left",
    ),
    "full": (
        "dividing by {b} gives {q} with remainder {r}, so {c} are full",
        "{a}/{b} is {q} with remainder {r}, so {c} are full",
        "groups of {b} go {q} times into {a} with remainder {r}, so {c} are full",
    ),
    "gap": (
        "{hi} is more than {lo}, so the difference is {hi}-{lo}={c}",
        "{lo} is less than {hi}, which gives {hi}-{lo}={c}",
        "we compare {a} with {b} and get {hi}-{lo}={c}",
    ),
    "max": (
        "{hi} is more than {lo}, so {c} are kept",
        "{lo} is less than {hi}, so {c} are kept",
        "we compare {a} with {b} and keep {c}",
    ),
    "min": (
        "{hi} is more than {lo}, so {c} are kept",
        "{lo} is less than {hi}, so {c} are kept",
        "we compare {a} with {b} and keep {c}",
    ),
}

TAILS = (".", " now.", " at this point.", " so far.", " in all.")

ENDINGS = (
    "So the answer is {c}.",
    "That makes {c} {items}.",
    "The result is {c}.",
    "This leaves us with {c} {items}.",
    "Hence we end with {c}.",
)
