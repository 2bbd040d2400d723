"""The command line: `sample` shows training text, `eval FILE` writes the held-out questions."""

import argparse
from pathlib import Path
from random import Random

from . import DRILLS, EVALUATION_SEED, LONG, MIX, as_jsonl, as_text, evaluation_set, training_document


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python3 -m corpus", description="The demo model's text generator.")
    commands = parser.add_subparsers(dest="command", required=True)
    sample = commands.add_parser("sample", help="print training documents")
    sample.add_argument("--seed", type=int, default=0, help="seed of the draws (default: 0)")
    sample.add_argument("--count", type=int, default=5, help="documents to print (default: 5)")
    stage_help = "0: recall drills, 1: the mix (default), 2: long documents"
    sample.add_argument("--stage", type=int, choices=[DRILLS, MIX, LONG], default=MIX, help=stage_help)
    evaluation = commands.add_parser("eval", help="write the held-out questions, a JSON object a line")
    evaluation.add_argument("file", type=Path, help="file to write")
    evaluation.add_argument(
        "--seed", type=int, default=EVALUATION_SEED, help="other questions (default: eval.jsonl's)"
    )
    return parser.parse_args()


def main() -> None:
    """Runs the command."""
    options = arguments()
    if options.command == "eval":
        options.file.write_text(as_jsonl(evaluation_set(options.seed)), encoding="utf-8")
        return
    rng = Random(options.seed)
    for _ in range(options.count):
        document = training_document(rng, options.stage)
        print(f"--- kind {document.kind}")
        print(as_text(document.segments))


if __name__ == "__main__":
    main()
