"""The four plots: which sentences a story has, the plot's own variables, its questions.

A plot draws its variables before any sentence is expanded, and in a fixed order: both are part of the corpus.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from . import story_sentences as say
from . import story_world as world
from .cast import Variables
from .documents import Question
from .grammar import expand, sentence

Pattern = Sequence[str]


class Plot(NamedTuple):
    """What the first paragraph gets in addition, the other three as patterns, and the plot's questions."""

    opening: list[Pattern]
    worry: list[Pattern]
    help: list[Pattern]
    happy_end: list[Pattern]
    questions: list[Question]


def common_questions(cast: Variables) -> list[Question]:
    """The questions that every story answers."""
    return [
        Question(f"What kind of animal was {cast['hero']}?", sentence(cast["an_animal"])),
        Question(f"Where did {cast['hero']} live?", sentence(cast["home"])),
        Question("What was the weather like?", sentence(cast["weather"])),
        Question(f"How did {cast['hero']} feel at first?", sentence(cast["sad"])),
        Question(f"How did {cast['hero']} feel in the end?", sentence(cast["glad"])),
        Question("What did they eat?", sentence(cast["food"])),
        Question(f"What kind of animal was {cast['helper']}?", sentence(cast["a_helper_animal"])),
    ]


def helper_named(cast: Variables) -> str:
    """The helper as an answer to "who?"."""
    return f"{cast['helper']} the {cast['helper_animal']}."


def relative_named(cast: Variables) -> str:
    """The relative as an answer to "who?"."""
    return sentence(f"{cast['his']} {cast['giver']}")


def lost_thing(rng: Random, cast: Variables) -> Plot:
    """A keepsake is lost, and found with a helper past an obstacle."""
    cast["lament"] = expand(
        rng, "{I have lost my $coloured_thing|My $thing is gone|I cannot find my $thing}", cast
    )
    search = [say.SEARCH] if rng.random() < 0.7 else []
    return Plot(
        opening=[say.KEEPSAKE],
        worry=[say.WEATHER_TODAY, say.LOSS, say.DISMAY, *search],
        help=[say.OBSTACLE_AHEAD, say.MEETING, say.OFFER_OF_HELP, say.RESCUE],
        happy_end=[say.FINDING, say.RELIEF, say.MEAL, say.ENDING],
        questions=[
            Question(f"Who helped {cast['hero']}?", helper_named(cast)),
            Question(f"Where was the {cast['thing']}?", sentence(cast["spot"])),
            Question(f"What did {cast['hero']} lose?", sentence(cast["a_coloured_thing"])),
            Question(f"What colour was the {cast['thing']}?", sentence(cast["colour"])),
            Question("What blocked the way?", sentence(cast["obstacle"])),
            Question(f"Who gave {cast['hero']} the {cast['thing']}?", relative_named(cast)),
        ],
    )


def gift(rng: Random, cast: Variables) -> Plot:
    """A present is brought to a relative, past an obstacle."""
    cast["lament"] = expand(
        rng, "{I cannot get any further|The way is blocked|I have to bring this $thing to my $giver}", cast
    )
    return Plot(
        opening=[],
        worry=[say.WEATHER_TODAY, say.GIFT_PLAN, say.GIFT_JOURNEY],
        help=[say.OBSTACLE_AHEAD, say.DISMAY, say.MEETING, say.OFFER_OF_HELP, say.RESCUE],
        happy_end=[say.GIFT_ARRIVAL, say.RELIEF, say.MEAL, say.ENDING],
        questions=[
            Question(f"Who helped {cast['hero']}?", helper_named(cast)),
            Question("What was the present?", sentence(cast["a_coloured_thing"])),
            Question(f"What colour was the {cast['thing']}?", sentence(cast["colour"])),
            Question("What blocked the way?", sentence(cast["obstacle"])),
            Question(f"Who got the {cast['thing']}?", relative_named(cast)),
            Question(f"Where did the {cast['giver']} live?", sentence(cast["giver_home"])),
        ],
    )


def handiwork(rng: Random, cast: Variables) -> Plot:
    """Something is made with a material that a helper gives."""
    cast["work"], cast["material"], cast["work_result"] = rng.choice(world.WORKS)
    cast["The_work"] = "The " + cast["work"].split(" ", 1)[1]
    cast["lament"] = expand(rng, "{I need $material|I want to make $work}", cast)
    return Plot(
        opening=[],
        worry=[say.WEATHER_TODAY, say.WORK_PLAN, say.DISMAY, say.WORK_ERRAND],
        help=[say.MEETING, say.OFFER_OF_HELP, say.WORK_MATERIAL, say.WORK_DONE],
        happy_end=[say.RELIEF, say.MEAL, say.ENDING],
        questions=[
            Question(f"Who helped {cast['hero']}?", helper_named(cast)),
            Question(f"What did {cast['hero']} want to make?", sentence(cast["work"])),
            Question(f"What did {cast['hero']} need?", sentence(cast["material"])),
        ],
    )


def strange_sound(rng: Random, cast: Variables) -> Plot:
    """A sound at night is a lonely animal, which gets the keepsake."""
    cast["spot"], cast["sound_place"] = rng.choice(world.SOUND_PLACES)
    cast["sound"] = rng.choice(world.SOUNDS)
    return Plot(
        opening=[say.KEEPSAKE],
        worry=[say.WEATHER_TODAY, say.SOUND_HEARD, say.SOUND_APPROACH],
        help=[say.STRANGER, say.STRANGER_TALK, say.STRANGER_GIFT],
        happy_end=[say.RELIEF, say.MEAL, say.ENDING],
        questions=[
            Question(f"What did {cast['hero']} hear?", sentence(cast["sound"])),
            Question(f"What did {cast['hero']} give away?", sentence(cast["a_coloured_thing"])),
            Question(f"Who got the {cast['thing']}?", helper_named(cast)),
            Question(f"What colour was the {cast['thing']}?", sentence(cast["colour"])),
        ],
    )


# A plot drawn evenly from a row; a plot named more than once is drawn more often.
PlotMaker = Callable[[Random, Variables], Plot]
ANY_PLOT: list[PlotMaker] = [lost_thing, lost_thing, lost_thing, gift, gift, handiwork, strange_sound]
# A story about a wished thing: the thing has no part in handiwork.
THING_PLOT: list[PlotMaker] = [lost_thing, lost_thing, gift, gift, strange_sound]
