"""Drills that can only be done by looking back: copying, retelling in another order, reading a table.

They came into the training late, at the start of its fourth phase; in that phase the share of right answers
to questions about a list went from 7 % to more than 75 %.
"""

from random import Random

from .documents import ASSISTANT, USER, Question, Segments, chat, exchange
from .retrieval import draw_facts
from .words import ANIMALS, COLOURS, CONTAINERS, NAMES, OBJECTS, ROOMS, SYLLABLES, TASK_WORDS, TOWNS


def made_up_item(rng: Random) -> str:
    """A number or a made-up word."""
    return rng.choice([str(rng.randint(10, 9999)), "".join(rng.choices(SYLLABLES, k=2))])


def copying(rng: Random) -> Segments:
    """One to three lists to repeat word for word, of known words or of made-up ones."""
    segments: Segments = []
    for _ in range(rng.randint(1, 3)):
        length = rng.randint(4, 16)
        pool = rng.choice([TASK_WORDS, NAMES, OBJECTS + CONTAINERS, None])
        items = rng.choices(pool, k=length) if pool else [made_up_item(rng) for _ in range(length)]
        listing = ", ".join(items) + "."
        segments += exchange("Repeat this: " + listing, listing)
    return segments


def reordering(rng: Random) -> Segments:
    """Facts told again in another order, once or twice: each has to be found to be told."""
    lines = [fact.sentence for fact in draw_facts(rng, rng.choice([2, 2, 3, 3, 4, 5, 6, 8]))]
    segments: Segments = [(USER, "\n".join(lines) + "\n\nSay this in another order.")]
    for telling in range(rng.randint(1, 2)):
        rng.shuffle(lines)
        if telling > 0:
            segments.append((USER, "Say it again in another order."))
        segments.append((ASSISTANT, "\n".join(lines)))
    return segments


def table_reading(rng: Random) -> Segments:
    """A table of keys and values, and questions that name a key."""
    rows = rng.choice([2, 3, 4, 5, 6, 8, 10])
    keys = rng.sample(rng.choice([OBJECTS, CONTAINERS, NAMES]), rows)
    if rng.random() < 0.4:
        keys = [rng.choice(COLOURS) + " " + key for key in keys]
    numbers = rng.random() < 0.5
    table = {
        key: str(rng.randint(10, 9999)) if numbers else rng.choice(rng.choice([ROOMS, ANIMALS, TOWNS]))
        for key in keys
    }
    asked = [rng.choice(keys) for _ in range(rng.randint(4, 10))]
    questions = [Question(f"{key}?", f"{key}: {table[key]}") for key in asked]
    listing = "\n".join(f"{key}: {value}" for key, value in table.items())
    questions[0] = Question(f"{listing}\n\n{asked[0]}?", questions[0].answer)
    return chat(questions)


def drill(rng: Random) -> Segments:
    """One drill."""
    which = rng.random()
    if which < 0.25:
        return copying(rng)
    if which < 0.55:
        return reordering(rng)
    return table_reading(rng)
