"""Greetings and questions about the model itself, on their own or before another subject."""

from random import Random
from typing import NamedTuple

from .documents import ASSISTANT, USER, Segments
from .retrieval import retrieval_chat
from .story_chat import story_chat
from .tasks import task_chat


class SmallTalk(NamedTuple):
    """Things a user may say, and the one reply to all of them."""

    sayings: tuple[str, ...]
    reply: str


SMALL_TALK = (
    SmallTalk(
        (
            "Hello!",
            "Hello.",
            "Hi!",
            "Hi there.",
            "Hey!",
            "Good morning!",
            "Good evening.",
            "Hello there!",
        ),
        "Hello! How can I help you?",
    ),
    SmallTalk(
        (
            "Who are you?",
            "What are you?",
            "Tell me about yourself.",
            "What is your name?",
            "Are you a person?",
        ),
        "I am a small demo model with latent attention.",
    ),
    SmallTalk(
        ("What can you do?", "How can you help me?", "What are you good at?"),
        (
            "I can tell short stories, answer questions about them, find facts in a list "
            "and do a little arithmetic."
        ),
    ),
    SmallTalk(("How are you?", "How are you today?"), "I am fine, thank you. How can I help you?"),
    SmallTalk(("Thank you!", "Thanks.", "Thank you very much."), "You are welcome!"),
    SmallTalk(("Goodbye!", "Bye.", "See you later."), "Goodbye! Have a nice day."),
    SmallTalk(("How big are you?", "Are you large?"), "I am very small. I fit in a few megabytes."),
)


def small_talk(rng: Random) -> Segments:
    """Something a user says, and the reply."""
    talk = rng.choice(SMALL_TALK)
    saying = rng.choice(talk.sayings)
    rng.choice([talk.reply])  # one reply, but a draw all the same: the draws after it depend on it
    return [(USER, saying), (ASSISTANT, talk.reply)]


def greeting_chat(rng: Random) -> Segments:
    """Two to four exchanges of small talk, and then perhaps another subject."""
    segments: Segments = []
    for _ in range(rng.randint(2, 4)):
        segments += small_talk(rng)
    subject = rng.random()
    if subject < 0.3:
        segments += story_chat(rng)
    elif subject < 0.5:
        segments += retrieval_chat(rng, rng.randint(2, 6))
    elif subject < 0.8:
        segments += task_chat(rng)[:8]
    return segments
