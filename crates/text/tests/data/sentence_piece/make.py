"""Makes tokenizer.model and ids.json with the Python package sentencepiece (0.2.3), and user_defined.model and user_defined.json (0.2.1), from the source texts of this repository's licences and a few lines."""

import json
import pathlib
import sys

import sentencepiece

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[4]
CORPUS = [
    *(line for name in ("LICENSE-MIT", "LICENSE-APACHE") for line in (ROOT / name).read_text().splitlines()),
    *("fn main() { let x = 1; }", "今天天气很好", "Öl und Käse, très bien", "the then  there   these") * 4,
]
TEXTS = [
    "",
    "Hello world",
    " leading and  double   spaces ",
    "the License\nof this\tWork",
    "Öl 今天 xyz 🚀 é",
    "fn main() { let x = 1; }",
    "▁ stands for a space",
    "<s> is text </s>",
]

# Pieces at which a text is split, some of them spaces.
USER_DEFINED = ["▁▁", "▁▁▁", "▁▁▁▁", "▁▁▁▁▁▁▁▁", "<think>", "[gMASK]", "▁<x>▁", "ab", "the▁"]
SPACED = [
    *("a" + " " * count + "b" for count in range(10)),
    *(" " * count + "the" for count in range(10)),
    *("the" + " " * count for count in range(1, 10)),
    *(" " * count for count in range(1, 10)),
    *("<think>", "<think>x", " <think> x", "x<think>", "x <think>", "a<think>  <think>b", "[gMASK]<think>", "<thin", "<think"),
    *("<x>", " <x> ", "a <x> b", "a  <x>  b", " <x> y", "▁<x>▁"),
    *("ab", "cab", "ab ab", "ababab  ab", "abc the the  the", "the the"),
    *("a▁▁▁b", "a▁ ▁b", "▁▁▁", " ▁", "fn main() {\n    let x = 1;\n        let y = 2;\n}", "今  天", "Öl   und\t Käse"),
    *("<s>  <s>", "🚀   é"),
]


def train(name, **options):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_prefix=str(HERE / name),
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        character_coverage=0.995,
        **options,
    )
    (HERE / f"{name}.vocab").unlink()
    return sentencepiece.SentencePieceProcessor(model_file=str(HERE / f"{name}.model"))


def write(model, texts, name):
    cases = [{"text": text, "ids": model.encode(text)} for text in texts]
    (HERE / name).write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n")


if "user-defined" not in sys.argv:
    write(train("tokenizer"), TEXTS, "ids.json")
spaced = train("user_defined", user_defined_symbols=USER_DEFINED)
lines = (json.dumps({"text": text, "ids": spaced.encode(text)}, ensure_ascii=False) for text in TEXTS + SPACED)
(HERE / "user_defined.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
