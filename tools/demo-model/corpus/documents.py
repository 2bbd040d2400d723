"""What a document is: a kind and its segments, each said by somebody.

Every generator returns segments, so that tokenisation and the loss weights (data.py) need to know nothing
about stories or lists.
"""

import json
from typing import NamedTuple

# Who says a segment. PLAIN is text outside a chat: a story by itself.
PLAIN, USER, ASSISTANT = "T", "U", "A"

Segment = tuple[str, str]
Segments = list[Segment]


class Document(NamedTuple):
    """A training document.

    `kind` is one letter: a story (a), chat about stories (b), retrieval (c), tasks (d), greetings (e),
    a mixed chat (m), a recall drill (r).
    """

    kind: str
    segments: Segments


class Question(NamedTuple):
    """A question and the one answer that counts as right."""

    text: str
    answer: str

    def turns(self) -> Segments:
        """The question as a user turn and the answer as the assistant's."""
        return exchange(self.text, self.answer)


def exchange(user: str, assistant: str) -> Segments:
    """A user turn and its reply."""
    return [(USER, user), (ASSISTANT, assistant)]


def chat(questions: list[Question]) -> Segments:
    """One exchange a question, in order."""
    return [turn for question in questions for turn in question.turns()]


def as_text(segments: Segments) -> str:
    """Segments for the eye: a line that begins with who says it."""
    return "\n".join(f"{role} {text}" for role, text in segments)


def as_json(document: Document) -> str:
    """One line that is equal for two documents if and only if they are: what the checksums are over."""
    return json.dumps([document.kind, document.segments], ensure_ascii=False)
