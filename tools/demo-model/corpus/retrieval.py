"""Retrieval: a list of facts with different keys, and questions that one fact of the list answers.

The answer repeats the whole fact, so that the model can look for the key and copy on from there.
"""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from .documents import Question, Segments, chat
from .words import ADJECTIVES, CONTAINERS, NAMES, OBJECTS, ROOMS, SURNAMES, SYLLABLES, TOWNS

# Sentences without a fact, to be read over.
FILLERS = (
    "The sun was warm that day.",
    "Nobody was in a hurry.",
    "It is good to know these things.",
    "A clock was ticking somewhere.",
    "The list goes on.",
    "Please read carefully.",
)
HEADINGS = ("Remember these facts.", "Here are some facts.", "Read this list.", "Some notes:", "")
# Short lists are drawn more often: they are where looking back is learned.
CHAT_LENGTHS = (2, 2, 2, 3, 3, 3, 4, 4, 5, 5, 6, 8, 10, 14, 20, 30)


class Fact(NamedTuple):
    """A fact, the question it answers, and the key that no other fact of its kind may have."""

    key: str
    sentence: str
    question: str

    def asked(self) -> Question:
        """The fact's question with the fact as its answer."""
        return Question(self.question, self.sentence)


class Vocabulary(NamedTuple):
    """The words that one list's codes and prices are about: a part of all, so that keys look alike."""

    adjectives: list[str]
    containers: list[str]

    def draw(self, rng: Random) -> str:
        """Something to have a code or a price: "red box"."""
        return rng.choice(self.adjectives) + " " + rng.choice(self.containers)


def code_fact(rng: Random, vocabulary: Vocabulary) -> Fact:
    """A four-digit code of a thing."""
    key = vocabulary.draw(rng)
    return Fact(
        key, f"The code of the {key} is {rng.randint(1000, 9999)}.", f"What is the code of the {key}?"
    )


def price_fact(rng: Random, vocabulary: Vocabulary) -> Fact:
    """A price of a thing."""
    key = vocabulary.draw(rng)
    return Fact(key, f"The {key} costs {rng.randint(2, 99)} coins.", f"How much does the {key} cost?")


def keeping_fact(rng: Random, _: Vocabulary) -> Fact:
    """The room where somebody keeps something: only name and thing together are the key."""
    name, thing = rng.choice(NAMES), rng.choice(OBJECTS)
    sentence = f"{name} keeps the {thing} in the {rng.choice(ROOMS)}."
    return Fact(name + thing, sentence, f"Where does {name} keep the {thing}?")


def town_fact(rng: Random, _: Vocabulary) -> Fact:
    """The town somebody lives in."""
    name = rng.choice(NAMES) + " " + rng.choice(SURNAMES)
    return Fact(name, f"{name} lives in {rng.choice(TOWNS)}.", f"Where does {name} live?")


def room_fact(rng: Random, _: Vocabulary) -> Fact:
    """Who has a numbered room."""
    number = str(rng.randint(1, 199))
    return Fact(number, f"Room {number} belongs to {rng.choice(NAMES)}.", f"Who has room {number}?")


def secret_fact(rng: Random, _: Vocabulary) -> Fact:
    """A made-up secret word for a thing."""
    thing = rng.choice(OBJECTS + CONTAINERS)
    word = "".join(rng.choices(SYLLABLES, k=rng.randint(2, 3)))
    return Fact(thing, f"The secret word for {thing} is {word}.", f"What is the secret word for {thing}?")


FactMaker = Callable[[Random, Vocabulary], Fact]
FACT_KINDS: list[FactMaker] = [code_fact, keeping_fact, price_fact, town_fact, room_fact, secret_fact]
# What to go on with when a list's own kinds run out of keys.
RESERVE_KINDS: list[FactMaker] = [code_fact, price_fact, town_fact, room_fact]


def draw_facts(rng: Random, count: int) -> list[Fact]:
    """`count` facts of one to three kinds, no key twice within a kind."""
    kinds = rng.sample(FACT_KINDS, rng.choice([1, 1, 2, 3])) if count > 3 else [rng.choice(FACT_KINDS)]
    vocabulary = Vocabulary(
        rng.sample(ADJECTIVES, rng.randint(5, len(ADJECTIVES))),
        rng.sample(CONTAINERS, rng.randint(6, len(CONTAINERS))),
    )
    seen: set[tuple[FactMaker, str]] = set()
    facts: list[Fact] = []
    tries = 0
    while len(facts) < count:
        tries += 1
        make_fact = rng.choice(kinds if tries < 6 * count else RESERVE_KINDS)
        fact = make_fact(rng, vocabulary)
        if (make_fact, fact.key) not in seen:
            seen.add((make_fact, fact.key))
            facts.append(fact)
    return facts


def list_prompt(rng: Random, facts: list[Fact], question: str) -> str:
    """A user turn with the list, in lines or as running text, and a question."""
    separator = rng.choice(["\n", " ", "\n"])
    lines = [fact.sentence for fact in facts]
    if separator == " " and rng.random() < 0.5:
        for _ in range(max(1, len(facts) // 8)):
            lines.insert(rng.randint(0, len(lines)), rng.choice(FILLERS))
    heading = rng.choice(HEADINGS)
    return (heading + "\n" if heading else "") + separator.join(lines) + "\n\n" + question


def retrieval_chat(rng: Random, count: int | None = None) -> Segments:
    """A list of `count` facts (drawn if None) and up to nine questions about it."""
    count = count or rng.choice(CHAT_LENGTHS)
    facts = draw_facts(rng, count)
    asked = [fact.asked() for fact in rng.sample(facts, min(count, rng.randint(3, 9)))]
    first = Question(list_prompt(rng, facts, asked[0].text), asked[0].answer)
    return chat([first, *asked[1:]])
