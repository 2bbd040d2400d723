"""A story with its questions: cast, plot, sentences, paragraphs."""

import re
from random import Random
from typing import NamedTuple

from . import story_sentences as say
from .cast import Variables, Wishes, draw_cast
from .documents import PLAIN, Question, Segments
from .grammar import capitalised, expand
from .plots import ANY_PLOT, THING_PLOT, Pattern, common_questions

_LOWER_AFTER_FULL_STOP = re.compile(r"\. ([a-z])")


class Story(NamedTuple):
    """A story's text and all the questions it answers."""

    text: str
    questions: list[Question]


def paragraph(rng: Random, patterns: list[Pattern], cast: Variables) -> str:
    """One sentence of each pattern; those that came out empty are left out."""
    sentences = [expand(rng, pattern, cast) for pattern in patterns]
    return " ".join(text for text in sentences if text)


def join_paragraphs(rng: Random, paragraphs: list[str]) -> list[str]:
    """The four paragraphs as they are, or joined to two or to one."""
    first, second, third, fourth = paragraphs
    if rng.random() < 0.3:
        return [f"{first} {second}", f"{third} {fourth}"]
    if rng.random() < 0.2:
        return [" ".join(paragraphs)]
    return paragraphs


def make_story(rng: Random, wishes: Wishes | None = None) -> Story:
    """A story, about what `wishes` names."""
    wishes = wishes or Wishes()
    cast = draw_cast(rng, wishes)
    questions = common_questions(cast)
    make_plot = rng.choice(THING_PLOT if wishes.thing else ANY_PLOT)
    introduction: list[Pattern] = [say.OPENING, say.PASTIME] if rng.random() < 0.75 else [say.OPENING]
    plot = make_plot(rng, cast)
    parts = [introduction + plot.opening, plot.worry, plot.help, plot.happy_end]
    paragraphs = join_paragraphs(rng, [paragraph(rng, patterns, cast) for patterns in parts])
    text = "\n\n".join(capitalised(part) for part in paragraphs)
    # A variable may begin a sentence inside a pattern, after a full stop.
    text = _LOWER_AFTER_FULL_STOP.sub(lambda match: match.group(0).upper(), text)
    return Story(text, questions + plot.questions)


def story_document(rng: Random) -> Segments:
    """A story by itself, as plain text."""
    return [(PLAIN, make_story(rng).text)]
