"""The evaluation: 300 questions from seeds that training never used, each with the one answer that counts."""

import json
from random import Random
from typing import TypedDict

from .retrieval import draw_facts, list_prompt
from .stories import make_story
from .story_chat import question_prompt
from .tasks import TASKS

EVALUATION_SEED = 987654321
# Questions of another seed steered what the training text is made of, so that eval.jsonl did not have to.
DEVELOPMENT_SEED = 4242
QUESTIONS_A_KIND = 100


class _Required(TypedDict):
    kind: str
    prompt: str
    expected: str


class Item(_Required, total=False):
    """A line of eval.jsonl: `n_facts` is there for retrieval, `sub` for tasks."""

    n_facts: int
    sub: str


def story_item(rng: Random) -> Item:
    """A question about a story."""
    story = make_story(rng)
    question = rng.choice(story.questions)
    prompt = question_prompt(rng, story.text, question.text)
    return {"kind": "story", "prompt": prompt, "expected": question.answer}


def list_length(rng: Random, index: int) -> int:
    """Facts in the list of the retrieval question `index`: 40 short lists, 30 of middle length, 30 long."""
    if index < 40:
        return rng.randint(3, 20)
    if index < 70:
        return rng.randint(21, 60)
    return rng.randint(61, 125)


def retrieval_item(rng: Random, index: int) -> Item:
    """A question about a list of facts."""
    count = list_length(rng, index)
    facts = draw_facts(rng, count)
    fact = rng.choice(facts)
    prompt = list_prompt(rng, facts, fact.question)
    return {"kind": "retrieval", "n_facts": count, "prompt": prompt, "expected": fact.sentence}


def task_item(rng: Random, index: int) -> Item:
    """A task; the five sorts take turns."""
    name = list(TASKS)[index % len(TASKS)]
    task = TASKS[name](rng, True)
    return {"kind": "task", "sub": name, "prompt": task.text, "expected": task.answer}


def evaluation_set(seed: int = EVALUATION_SEED) -> list[Item]:
    """All questions, in the order of eval.jsonl."""
    rng = Random(seed)
    stories = [story_item(rng) for _ in range(QUESTIONS_A_KIND)]
    lists = [retrieval_item(rng, index) for index in range(QUESTIONS_A_KIND)]
    tasks = [task_item(rng, index) for index in range(QUESTIONS_A_KIND)]
    return stories + lists + tasks


def as_jsonl(items: list[Item]) -> str:
    """The text of eval.jsonl: a line an item, everything but ASCII escaped."""
    return "".join(json.dumps(item) + "\n" for item in items)
