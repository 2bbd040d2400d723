"""Who and what a story is about: every variable its sentences use, drawn before a word is written.

A story's questions are answered from these variables, not from its text, so an answer is right by
construction.
"""

from dataclasses import dataclass
from random import Random

from . import story_world as world
from .grammar import capitalised, with_article
from .words import ANIMALS, COLOURS, GIRLS, NAMES, OBJECTS

Variables = dict[str, str]


@dataclass
class Wishes:
    """What a listener asked the story to be about; None leaves it to chance."""

    animal: str | None = None
    hero: str | None = None
    thing: str | None = None
    weather: str | None = None


def pronouns(name: str) -> Variables:
    """The pronouns of `name`, as variables."""
    if name in GIRLS:
        return {"he": "she", "He": "She", "his": "her", "His": "Her", "him": "her"}
    return {"he": "he", "He": "He", "his": "his", "His": "His", "him": "him"}


def draw_characters(rng: Random, wishes: Wishes) -> Variables:
    """The hero and the helper: two names, two kinds of animal."""
    first_name, second_name = rng.sample(NAMES, 2)
    hero = wishes.hero or first_name
    helper = second_name if second_name != hero else first_name
    first_animal, second_animal = rng.sample(ANIMALS, 2)
    animal = wishes.animal or first_animal
    helper_animal = second_animal if second_animal != animal else first_animal
    trait = rng.choice(world.TRAITS)
    return {
        "hero": hero,
        "helper": helper,
        **pronouns(hero),
        "helper_he": pronouns(helper)["he"],
        "animal": animal,
        "an_animal": with_article(animal),
        "An_animal": capitalised(with_article(animal)),
        "helper_animal": helper_animal,
        "a_helper_animal": with_article(helper_animal),
        "trait": trait,
        "a_trait": with_article(trait),
        "home": rng.choice(world.HOMES),
        "hobby": rng.choice(world.HOBBIES),
    }


def draw_things(rng: Random, wishes: Wishes) -> Variables:
    """The thing the story turns on, its colour, who gave or gets it."""
    drawn_thing = rng.choice(OBJECTS)  # drawn even if a wish replaces it
    thing = wishes.thing or drawn_thing
    colour = rng.choice(COLOURS)
    coloured_thing = f"{colour} {thing}"
    return {
        "thing": thing,
        "colour": colour,
        "coloured_thing": coloured_thing,
        "a_coloured_thing": with_article(coloured_thing),
        "garment": rng.choice(world.GARMENTS),
        "giver": rng.choice(world.RELATIVES),
    }


def draw_events(rng: Random, wishes: Wishes, home: str) -> Variables:
    """The weather, the obstacle and the deed, the feelings, the meal and the places."""
    skies = dict(world.WEATHER)
    weather = wishes.weather or rng.choice(world.WEATHER)[0]
    obstacle, deeds = rng.choice(world.OBSTACLES)
    variables = {
        "weather": weather,
        "sky": skies[weather],
        "obstacle": obstacle,
        "deed": rng.choice(deeds),
        "sad": rng.choice(world.SAD_FEELINGS),
        "glad": rng.choice(world.GLAD_FEELINGS),
        "food": rng.choice(world.MEALS),
    }
    variables["spot"], variables["wrong_spot"] = rng.sample(world.SPOTS, 2)
    variables["giver_home"] = rng.choice([place for place in world.HOMES if place != home])
    return variables


def draw_cast(rng: Random, wishes: Wishes) -> Variables:
    """Every variable that does not depend on the plot."""
    characters = draw_characters(rng, wishes)
    things = draw_things(rng, wishes)
    return characters | things | draw_events(rng, wishes, characters["home"])
