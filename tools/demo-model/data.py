"""Training data: documents as token ids with a mark for what is not to be learned, and batches of them.

  python3 data.py --work work

generates the corpus of all stages, trains the tokenizer if there is none, and writes work/data.npz.
"""

import argparse
import os
from collections.abc import Iterator, Mapping
from multiprocessing import Pool
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer

import corpus
from config import DEMO
from corpus.documents import USER as USER_ROLE
from tokenizer import ASSISTANT, BOS, EOS, PAD, USER, load_or_train

WORK = Path(__file__).parent / "work"
# Documents per round of generation and tokenisation. This bounds the memory of a process.
ROUND = 1000
VALIDATION_DOCUMENTS = 300
# Longer user turns contain a story or a list.
LONG_USER_TURN = 200
# Loss weights of ordinary text, and of the tokens of an answer.
TEXT_WEIGHT, ANSWER_WEIGHT = 0.25, 1.0
# Shorter assistant turns have the weight of answers. A story is longer: only its end has that
# weight.
ANSWER_TOKENS = 130


class TokenDocument(NamedTuple):
    """A document's token ids (uint16), and 1 where the loss must not look (uint8)."""

    ids: np.ndarray
    skipped: np.ndarray


def is_unpredictable(kind: str, text: str) -> bool:
    """Whether a user turn is random by nature, so that its prediction teaches nothing."""
    if kind in "cdr" or len(text) > LONG_USER_TURN:
        return True
    return kind in "em" and any(character.isdigit() for character in text[:60])


def encode(tokenizer: Tokenizer, documents: list[corpus.Document]) -> list[TokenDocument]:
    """Token ids: BOS, then user turns between the markers, and replies or plain text up to EOS."""
    texts = [text for document in documents for _, text in document.segments]
    encodings = iter(tokenizer.encode_batch_fast(texts, add_special_tokens=False))
    encoded = []
    for document in documents:
        ids, skipped = [BOS], [0]
        for role, text in document.segments:
            tokens = next(encodings).ids
            if role == USER_ROLE:
                ids += [USER, *tokens, ASSISTANT]
                skipped += [1] + [int(is_unpredictable(document.kind, text))] * len(tokens) + [1]
            else:
                ids += [*tokens, EOS]
                skipped += [0] * (len(tokens) + 1)
        encoded.append(TokenDocument(np.array(ids, np.uint16), np.array(skipped, np.uint8)))
    return encoded


class Job(NamedTuple):
    """One process's share of a data set."""

    data_set: str
    stage: int
    seed: int
    documents: int
    tokenizer: Path


def run_job(job: Job) -> list[TokenDocument]:
    """Generates and tokenises a share; documents longer than the model's positions are left out."""
    tokenizer = Tokenizer.from_file(str(job.tokenizer))
    rng = Random(job.seed)
    kept: list[TokenDocument] = []
    for start in range(0, job.documents, ROUND):
        count = min(ROUND, job.documents - start)
        documents = [corpus.training_document(rng, job.stage) for _ in range(count)]
        encoded = encode(tokenizer, documents)
        kept += [document for document in encoded if len(document.ids) <= DEMO.max_position_embeddings]
    return kept


def prepare(work: Path, drills: int, mix: int, long: int) -> None:
    """Writes data.npz with about that many documents of each stage, and held-out ones of the mix."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    work.mkdir(parents=True, exist_ok=True)
    path = work / "tokenizer.json"
    load_or_train(path, DEMO.vocab_size)
    # Seeds far apart, so that no data set is the beginning of another one.
    jobs = [Job("mix", corpus.MIX, 1000 + share, mix // 8, path) for share in range(8)]
    jobs += [Job("long", corpus.LONG, 2000 + share, long // 4, path) for share in range(4)]
    jobs += [Job("validation", corpus.MIX, 3000, VALIDATION_DOCUMENTS, path)]
    jobs += [Job("drills", corpus.DRILLS, 4000 + share, drills // 2, path) for share in range(2)]
    with Pool(2) as pool:
        results = pool.map(run_job, jobs, chunksize=1)
    sets: dict[str, list[TokenDocument]] = {}
    for job, documents in zip(jobs, results):
        sets.setdefault(job.data_set, []).extend(documents)
    arrays = {}
    for name, documents in sets.items():
        arrays[f"{name}_lengths"] = np.array([len(document.ids) for document in documents], np.int32)
        arrays[f"{name}_ids"] = np.concatenate([document.ids for document in documents])
        arrays[f"{name}_skipped"] = np.concatenate([document.skipped for document in documents])
        print(name, len(documents), "documents", len(arrays[f"{name}_ids"]), "tokens", flush=True)
    np.savez(work / "data.npz", **arrays)


class DataSet:
    """Documents batched by length. Every row starts with BOS at position 0, so no document sees another."""

    def __init__(self, arrays: Mapping[str, np.ndarray], name: str) -> None:
        self.ids = arrays[f"{name}_ids"]
        self.skipped = arrays[f"{name}_skipped"]
        self.lengths = arrays[f"{name}_lengths"]
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths)])

    def batches(
        self, rng: np.random.Generator, tokens: int, chunk: int = 3000
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """One pass in random order: ids and loss weights, both (rows, longest row), of up to `tokens` tokens.

        A chunk of documents is sorted by length, cut into batches, and the batches are shuffled: little
        padding, and short and long documents still take turns.
        """
        order = rng.permutation(len(self.lengths))
        for start in range(0, len(order), chunk):
            part = order[start : start + chunk]
            part = part[np.argsort(self.lengths[part], kind="stable")]
            batches: list[list[int]] = []
            rows: list[int] = []
            for row in part:  # in ascending order: the newest row is the longest
                if rows and (len(rows) + 1) * self.lengths[row] > tokens:
                    batches.append(rows)
                    rows = []
                rows.append(row)
            # The rest of a chunk is dropped if it is less than half a batch.
            if start + chunk >= len(order) or len(rows) * self.lengths[rows[-1]] > tokens // 2:
                batches.append(rows)
            for index in rng.permutation(len(batches)):
                yield self.pack(batches[index])

    def pack(self, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and loss weights of some documents, padded to the longest."""
        width = max(self.lengths[row] for row in rows)
        ids = np.full((len(rows), width), PAD, np.int64)
        weights = np.zeros((len(rows), width), np.float32)
        for line, row in enumerate(rows):
            start, end = self.offsets[row], self.offsets[row + 1]
            document, weight = ids[line, : end - start], weights[line, : end - start]
            document[:] = self.ids[start:end]
            weight[:] = np.where(self.skipped[start:end] == 1, 0.0, TEXT_WEIGHT)
            turns, ends = np.flatnonzero(document == ASSISTANT), np.flatnonzero(document == EOS)
            for turn, stop in zip(turns, ends):
                weight[turn + 1 if stop - turn < ANSWER_TOKENS else stop : stop + 1] = ANSWER_WEIGHT
        return torch.from_numpy(ids), torch.from_numpy(weights)


def main() -> None:
    """Runs the preparation."""
    parser = argparse.ArgumentParser(description="Generates the corpus and writes it as tokens.")
    parser.add_argument(
        "--work", type=Path, default=WORK, help="folder for tokenizer.json (kept if there) and data.npz"
    )
    parser.add_argument("--drills", type=int, default=12000, help="documents of stage 0, recall drills")
    parser.add_argument("--mix", type=int, default=100000, help="documents of stage 1, the mix")
    parser.add_argument("--long", type=int, default=6000, help="documents of stage 2, long ones")
    options = parser.parse_args()
    prepare(options.work, options.drills, options.mix, options.long)


if __name__ == "__main__":
    main()
