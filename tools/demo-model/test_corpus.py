"""Does the generator still make the text the demo model was trained on and is measured with?

Run as `python3 test_corpus.py`; needs Python alone. The checksums were taken from the program that made the
model, before it was divided into these files: a change of structure can be told from a change of text.
Between them they cover every stage and every kind of document.
"""

import hashlib
from pathlib import Path
from random import Random

import corpus

EVALUATION = Path(__file__).parent.parent.parent / "models" / "eval.jsonl"
# Seed, stage, documents, SHA-256 of their lines (corpus.as_json, each with a line feed).
SAMPLES = (
    (4000, 0, 3000, "b0df5409e3f376b8b659626e9834fd88510861789ba73d37439f372c85fec635"),
    (1000, 1, 4000, "a2d8f6c36a849e09e1341c828272a5098feec99752bd2fbed35fb3acd5a3c0c1"),
    (5, 1, 2000, "2fc19778aa8bd0300315ebb94b09813f1ab4d36c21b24b0566e56aaa298b05ca"),
    (2000, 2, 400, "cfd2d4d16373e7b230019610cf88e2fd3f48fa97d6a54a5865d2394cff8acf51"),
)
DEVELOPMENT_SHA256 = "152edef92b17930b0df8b20f95ef7b5caed5f011f7adfb3db5a22f60c957bde9"


def sha256_of_documents(seed: int, stage: int, count: int) -> str:
    """Checksum of the first documents of a seed."""
    rng, checksum = Random(seed), hashlib.sha256()
    for _ in range(count):
        checksum.update(corpus.as_json(corpus.training_document(rng, stage)).encode() + b"\n")
    return checksum.hexdigest()


def check(what: str, is_right: bool) -> None:
    """Ends the program with a message unless `is_right`."""
    if not is_right:
        raise SystemExit(f"FAILED: {what} is not what the demo model was made with")
    print(f"ok: {what}")


def main() -> None:
    """All checks."""
    made = corpus.as_jsonl(corpus.evaluation_set()).encode()
    check("models/eval.jsonl", made == EVALUATION.read_bytes())
    development = corpus.as_jsonl(corpus.evaluation_set(corpus.DEVELOPMENT_SEED)).encode()
    check("the development set", hashlib.sha256(development).hexdigest() == DEVELOPMENT_SHA256)
    for seed, stage, count, expected in SAMPLES:
        what = f"stage {stage}, seed {seed}, {count} documents"
        check(what, sha256_of_documents(seed, stage, count) == expected)


if __name__ == "__main__":
    main()
