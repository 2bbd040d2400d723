"""The text the demo model was trained on: generated from hand-written sentences, and from nothing else.

`training_document` draws one document; `evaluation_set` is what eval.jsonl holds. The same seed gives the
same text on every machine. Read documents.py first, then mixture.py; each other file is one subject.
"""

from .documents import Document, as_json, as_text
from .held_out import DEVELOPMENT_SEED, EVALUATION_SEED, Item, as_jsonl, evaluation_set
from .mixture import DRILLS, LONG, MIX, training_document

__all__ = [
    "DEVELOPMENT_SEED",
    "DRILLS",
    "EVALUATION_SEED",
    "LONG",
    "MIX",
    "Document",
    "Item",
    "as_json",
    "as_jsonl",
    "as_text",
    "evaluation_set",
    "training_document",
]
