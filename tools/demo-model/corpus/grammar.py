"""The template language of the hand-written sentences: `{a|b}` picks one, `$name` is a variable.

A sentence is written once with its variants inside it, which gives thousands of phrasings from a page of
text.
"""

import re
from collections.abc import Mapping, Sequence
from random import Random

_ALTERNATIVES = re.compile(r"\{([^{}]*)\}")
_VARIABLE = re.compile(r"\$(\w+)")


def with_article(noun: str) -> str:
    """`noun` after "a" or "an"; by its first letter, which is right for every word in our lists."""
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def capitalised(text: str) -> str:
    """`text` with its first letter in upper case and the rest as it was."""
    return text[0].upper() + text[1:]


def sentence(text: str) -> str:
    """`text` as a sentence of its own: a short answer."""
    return capitalised(text) + "."


def expand(rng: Random, pattern: str | Sequence[str], variables: Mapping[str, str]) -> str:
    """One text of `pattern`; from a sequence of patterns, one of them is drawn first.

    Alternatives are settled before variables are put in, innermost first and from left to right, so that the
    draws come in the order of the text and a variable's value is never read as a template.
    """
    text = pattern if isinstance(pattern, str) else rng.choice(pattern)
    while "{" in text:
        text = _ALTERNATIVES.sub(lambda match: rng.choice(match.group(1).split("|")), text)
    return _VARIABLE.sub(lambda match: variables[match.group(1)], text)
