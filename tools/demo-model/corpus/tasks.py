"""Small tasks: adding, subtracting, sorting, reversing, counting.

The sums of the evaluation are kept out of training by construction: `is_held_out` divides all sums into two
sets.
"""

from collections.abc import Callable
from random import Random

from .documents import Question, Segments, chat
from .words import NUMBER_WORDS, TASK_WORDS

ARITHMETIC_PROMPTS = ("What is %s?", "%s = ?", "Calculate %s.", "How much is %s?")
SORTING_PROMPTS = ("Sort these words: %s.", "Put these words in order: %s.")
REVERSING_PROMPTS = ("Reverse these words: %s.", "Say these words backwards: %s.")


def is_held_out(left: int, right: int, operator: str) -> bool:
    """Whether a sum belongs to the evaluation: one in eleven does, scattered over both operands."""
    return (left * 7919 + right * 104729 + (operator == "+") * 31) % 11 == 0


def draw_operands(rng: Random, operator: str, held_out: bool) -> tuple[int, int]:
    """Two numbers of two digits; the result of a subtraction is never negative."""
    while True:
        left, right = rng.randint(10, 99), rng.randint(10, 99)
        if operator == "-" and left < right:
            left, right = right, left
        if is_held_out(left, right, operator) == held_out:
            return left, right


def addition(rng: Random, held_out: bool) -> Question:
    """A sum to add up."""
    left, right = draw_operands(rng, "+", held_out)
    return Question(
        rng.choice(ARITHMETIC_PROMPTS) % f"{left} + {right}", f"{left} + {right} = {left + right}."
    )


def subtraction(rng: Random, held_out: bool) -> Question:
    """A difference to work out."""
    left, right = draw_operands(rng, "-", held_out)
    return Question(
        rng.choice(ARITHMETIC_PROMPTS) % f"{left} - {right}", f"{left} - {right} = {left - right}."
    )


def some_words(rng: Random) -> list[str]:
    """Three to six different words."""
    return rng.sample(TASK_WORDS, rng.randint(3, 6))


def sorting(rng: Random, _: bool) -> Question:
    """Words to put into alphabetical order."""
    words = some_words(rng)
    return Question(
        rng.choice(SORTING_PROMPTS) % ", ".join(words), "Sorted: " + ", ".join(sorted(words)) + "."
    )


def reversing(rng: Random, _: bool) -> Question:
    """Words to say in reverse order."""
    words = some_words(rng)
    return Question(
        rng.choice(REVERSING_PROMPTS) % ", ".join(words), "Reversed: " + ", ".join(words[::-1]) + "."
    )


def counting(rng: Random, _: bool) -> Question:
    """How often a word occurs in a list, or how long the list is."""
    some_words(rng)  # not used, but drawn when the demo model was trained: the draws after it depend on it
    word, *others = rng.sample(TASK_WORDS, 3)
    if rng.random() < 0.5:
        times = rng.randint(1, 6)
        words = [word] * times + rng.choices(others, k=rng.randint(0, 5))
        rng.shuffle(words)
        answer = f"The word {word} appears {NUMBER_WORDS[times]} time{'' if times == 1 else 's'}."
        return Question(f"How often does {word} appear here: {', '.join(words)}?", answer)
    words = rng.sample(TASK_WORDS, rng.randint(2, 9))
    return Question(
        f"How many words are in this list: {', '.join(words)}?",
        f"There are {NUMBER_WORDS[len(words)]} words.",
    )


# The names that eval.jsonl gives the tasks.
TaskMaker = Callable[[Random, bool], Question]
TASKS: dict[str, TaskMaker] = {
    "add": addition,
    "sub": subtraction,
    "sort": sorting,
    "rev": reversing,
    "count": counting,
}
# Arithmetic is drawn twice as often as each of the others.
TRAINING_TASKS = ("add", "add", "sub", "sub", "sort", "rev", "count")


def task_chat(rng: Random) -> Segments:
    """Six to sixteen tasks, one after the other."""
    return chat([TASKS[rng.choice(TRAINING_TASKS)](rng, False) for _ in range(rng.randint(6, 16))])
