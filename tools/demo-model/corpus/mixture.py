"""What share of the training text each kind of document has, in each stage of training.

Stage 0 is drills only and comes first: it brings up the copying that lists need. Stage 1 is the mix. Stage 2
holds long documents, up to the model's 2048 positions; the last part of training takes some of its batches
from it.
"""

from collections.abc import Callable
from random import Random

from .documents import Document, Segments
from .drills import drill
from .greetings import greeting_chat
from .retrieval import retrieval_chat
from .stories import story_document
from .story_chat import story_chat
from .tasks import task_chat

DRILLS, MIX, LONG = 0, 1, 2


def mixed_chat(rng: Random) -> Segments:
    """A chat that changes its subject once or more."""
    parts = [story_chat(rng), retrieval_chat(rng, rng.randint(3, 12)), task_chat(rng)[:6]]
    if rng.random() < 0.4:
        parts.append(greeting_chat(rng)[:4])
    rng.shuffle(parts)
    return [segment for part in parts[: rng.randint(2, len(parts))] for segment in part]


# For the mix: the share up to which a kind is drawn, the kind's letter, its generator.
SHARES: tuple[tuple[float, str, Callable[[Random], Segments]], ...] = (
    (0.05, "a", story_document),
    (0.46, "b", story_chat),
    (0.70, "c", retrieval_chat),
    (0.89, "d", task_chat),
    (0.93, "e", greeting_chat),
    (1.00, "m", mixed_chat),
)
DRILL_SHARE = 0.04


def long_document(rng: Random) -> Document:
    """A long list, several stories, or three mixed chats in a row."""
    which = rng.random()
    if which < 0.62:
        return Document("c", retrieval_chat(rng, rng.randint(36, 125)))
    if which < 0.85:
        return Document("b", story_chat(rng, rng.randint(3, 6)))
    return Document("m", [segment for _ in range(3) for segment in mixed_chat(rng)])


def training_document(rng: Random, stage: int) -> Document:
    """The next training document of a stage (DRILLS, MIX or LONG)."""
    if stage == LONG:
        return long_document(rng)
    drill_draw = rng.random()  # drawn in both stages, used in one
    if stage == DRILLS or drill_draw < DRILL_SHARE:
        return Document("r", drill(rng))
    which = rng.random()
    kind, make = next((kind, make) for share, kind, make in SHARES if which < share)
    return Document(kind, make(rng))
