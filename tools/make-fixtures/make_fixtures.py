#!/usr/bin/env python3
"""Make the engine's fixtures: small random models with logits and greedy tokens by Hugging Face transformers.

    make_fixtures.py --out DIR [CASE ...]            write DIR/CASE for each case (all by default)
    make_fixtures.py --out DIR --check [CASE ...]    make them again and compare with DIR/CASE instead

Everything is computed in float32 on the CPU by one thread. README.md says what is deterministic.
"""

import argparse
import filecmp
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

import plm
from cases import CASES, Case

SEEDS = range(1, 51)
GREEDY = 16
"""Number of tokens of greedy decoding."""
FLOAT32: dict[str, Any] = dict(dtype=torch.float32, attn_implementation="eager")
LATENT_NORMS = ("q_a_layernorm", "kv_a_layernorm")
LATENT_PROJECTIONS = ("q_a_proj.weight", "kv_a_proj_with_mqa.weight")
"""The projections whose outputs those norms normalize."""
STEADY = 1e-8
"""Maximum change of a row of logits by a disturbance: squared norm of the change over that of the row."""
NEAR = 2e-5
"""Maximum difference of logits under --check, relative to the row's largest. Other ISAs gave up to 5e-6."""
NEAR_MARGIN = 0.005
"""Maximum difference of a margin: the same for logits up to 100, and the rounding to 4 places."""


def class_of(case: Case, kind: str) -> Any:
    """The class of the case's model or configuration, of transformers or, if it has none, of plm.py."""
    name = case.config_class.removesuffix("Config") + kind
    return getattr(transformers, name, None) or getattr(plm, name)


def build(case: Case) -> PreTrainedModel:
    """The case's model with transformers' own initial weights, which `fill` then replaces."""
    config = class_of(case, "Config")(**case.arguments)
    model = class_of(case, "ForCausalLM")._from_config(config, **FLOAT32)
    return finished(add_gates(model) if case.full_gate else model, case)


def load(case: Case, folder: Path) -> PreTrainedModel:
    """The saved model of a case, with the gates that transformers' class lacks."""
    model = class_of(case, "ForCausalLM").from_pretrained(folder, **FLOAT32)
    if case.full_gate:
        gates = {k: w.float() for k, w in load_file(folder / "model.safetensors").items() if "g_proj" in k}
        add_gates(model).load_state_dict(gates, strict=False)
    return finished(model, case)


def add_gates(model: PreTrainedModel) -> PreTrainedModel:
    """Gate attention's output by element before its projection: o * sigmoid(G x), x the attention's input.

    The formula of Hy4 and Kimi-K3, in plain torch: no class of transformers has this gate in layers that the
    engine runs.
    """
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.g_proj = torch.nn.Linear(model.config.hidden_size, attention.o_proj.in_features, bias=False)

        def keep(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            module.gate = torch.sigmoid(module.g_proj(kwargs["hidden_states"] if not args else args[0]))

        def gate(_: torch.nn.Module, args: tuple[Any, ...], attention: torch.nn.Module = attention) -> Any:
            return (args[0] * attention.gate,)

        attention.register_forward_pre_hook(keep, with_kwargs=True)
        attention.o_proj.register_forward_pre_hook(gate)
    return model


def finished(model: PreTrainedModel, case: Case) -> PreTrainedModel:
    """The model in evaluation mode, with the epsilon of the latents' norms that the case sets."""
    if case.tiny_latents:
        for name, module in model.named_modules():
            if name.endswith(LATENT_NORMS):
                module.variance_epsilon = model.config.rms_norm_eps
    return model.eval()


def fill(model: PreTrainedModel, case: Case, seed: int) -> None:
    """Replace all weights by random ones that make a mistake visible.

    The usual small initial weights leave attention and routing nearly uniform, and a model like that gives
    almost the same logits when an engine gets them wrong. Matrices are rounded to bfloat16 here, so that the
    file holds them exactly at half the size. Tied weights appear once in `named_parameters`.
    """
    generator = torch.Generator().manual_seed(seed + 1)
    for name, weight in chain(model.named_parameters(), model.named_buffers()):
        if "inv_freq" in name or weight.ndim == 0:
            continue  # constants of the architecture, not weights
        noise = torch.randn(weight.shape, generator=generator)
        if name.endswith(case.left_out or " "):
            weight.zero_()
        elif "correction_bias" in name:
            # Positive, since engines differ in the score of a group that was not chosen: 0 or -inf.
            weight.copy_(0.3 * noise.abs())
        elif name.endswith("A_log"):
            # Heads with fast and with slow decay.
            weight.copy_((0.5 * noise).bfloat16())
        elif name.endswith("dt_bias"):
            weight.copy_(2.0 * noise - 3.0)
        elif weight.ndim == 1:
            weight.copy_(1 + 0.2 * noise)
        elif "embed_tokens" in name:
            weight.copy_(noise.bfloat16())
        elif case.tiny_latents and name.endswith(LATENT_PROJECTIONS):
            weight.copy_((0.003 * noise / weight.shape[-1] ** 0.5).bfloat16())
        else:
            weight.copy_((1.5 * noise / weight.shape[-1] ** 0.5).bfloat16())


def logits_of(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    """Logits [T, V] of all positions, without a cache kept between calls."""
    return model(torch.tensor([tokens])).logits[0]


def is_steady(model: PreTrainedModel, tokens: list[int], logits: Tensor) -> bool:
    """Whether the logits hardly move when the embeddings do.

    Where two experts stand nearly level, rounding decides between them, and another engine may rightly decide
    otherwise. A disturbance a little larger than rounding (3e-6, twelve times) brings such a choice to light.
    """
    embedding = model.get_input_embeddings().get_parameter("weight")
    original = embedding.clone()
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for _ in range(12):
        embedding.copy_(original * (1 + 3e-6 * torch.randn(original.shape, generator=generator)))
        moved = (logits_of(model, tokens) - logits).square().sum(-1) / logits.square().sum(-1)
        worst = max(worst, moved.max().item())
    embedding.copy_(original)
    return worst < STEADY


def decode_greedily(model: PreTrainedModel, prompt: list[int]) -> tuple[list[int], list[float]]:
    """The tokens that always taking the best logit appends, and how far each stood above the second best.

    Without a cache: every step computes all positions again, so that the reference has no state to get wrong.
    """
    tokens, margins = list(prompt), []
    for _ in range(GREEDY):
        top = logits_of(model, tokens)[-1].topk(2)
        best, second = top.values
        tokens.append(int(top.indices[0]))
        margins.append(round(float(best - second), 4))
    return tokens[len(prompt) :], margins


def kept_rows(length: int) -> list[int]:
    """Positions whose logits are stored: all of a short prompt, otherwise every 25th and the last 8."""
    if length <= 64:
        return list(range(length))
    return sorted({*range(0, length, 25), *range(length - 8, length)})


def save(model: PreTrainedModel, case: Case, folder: Path) -> None:
    """Save the model with the tensor names of published models, then convert matrices to bfloat16."""
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    kept = {k: w for k, w in load_file(path).items() if not k.endswith(case.left_out or " ")}
    narrow = {k: (w.bfloat16() if w.ndim > 1 else w).contiguous() for k, w in kept.items()}
    save_file(narrow, path, metadata={"format": "pt"})


def random_prompt(case: Case, seed: int) -> list[int]:
    """Token ids of the prompt; never 0 or 1, which begin and end a text."""
    generator = torch.Generator().manual_seed(seed + 2)
    return torch.randint(2, case.arguments["vocab_size"], (case.prompt,), generator=generator).tolist()


def make(name: str, folder: Path) -> str:
    """Make one case in an empty folder (which may get more files than belong to it); returns a line about it.

    Raises RuntimeError if no seed is steady, or if the saved model does not give exactly the same logits.
    """
    case = CASES[name]
    model = build(case)
    for seed in SEEDS:
        fill(model, case, seed)
        tokens = random_prompt(case, seed)
        logits = logits_of(model, tokens)
        if is_steady(model, tokens, logits):
            break
    else:
        raise RuntimeError(f"{name}: no steady seed among {SEEDS}; choose other sizes in cases.py")

    save(model, case, folder)
    saved = load(case, folder)
    if not torch.equal(logits_of(saved, tokens), logits):
        raise RuntimeError(f"{name}: the saved model gives other logits; were all weights saved exactly?")

    greedy, margin = decode_greedily(model, tokens)
    rows = kept_rows(case.prompt)
    np.save(folder / "logits.npy", logits.numpy()[rows])
    expected = dict(tokens=tokens, rows=rows, greedy=greedy, margin=margin, seed=seed)
    (folder / "expected.json").write_text(json.dumps(expected))
    return f"seed {seed}, logits' deviation {logits.std():.2f}, least margin {min(margin)}"


Findings = Iterator[tuple[bool, str]]
"""A difference: whether it is an error (otherwise a note), and its description."""


def differences(made: dict[str, Any], kept: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, how it differs) for every key that is not equal in two JSON objects."""
    for key in sorted(made.keys() | kept.keys()):
        if key not in kept:
            yield key, f"{key} is missing, expected {made[key]!r}"
        elif key not in made:
            yield key, f"{key} is there ({kept[key]!r}), but is not made"
        elif made[key] != kept[key]:
            yield key, f"{key} is {kept[key]!r}, expected {made[key]!r}"


def compare_config(made: Path, kept: Path) -> Findings:
    """Compare two config.json. Another version of transformers is only noted: its effects show in other keys."""
    for key, text in differences(json.loads(made.read_text()), json.loads(kept.read_text())):
        yield key != "transformers_version", text


def compare_expected(made: Path, kept: Path) -> Findings:
    """Compare two expected.json: margins may differ slightly, like logits; the rest must be equal."""
    ours, theirs = json.loads(made.read_text()), json.loads(kept.read_text())
    for key, text in differences(ours, theirs):
        if key == "margin" and len(theirs.get(key, [])) == len(ours[key]):
            worst = max(abs(a - b) for a, b in zip(ours[key], theirs[key], strict=True))
            yield not worst <= NEAR_MARGIN, f"margins differ by up to {worst:.4f}"
        else:
            yield True, text


def compare_weights(made: Path, kept: Path) -> Findings:
    """Compare names, types, shapes and values of all tensors; values must be equal."""
    ours, theirs = load_file(made), load_file(kept)
    for name in sorted(ours.keys() ^ theirs.keys()):
        yield True, f"{name} is {'missing' if name in ours else 'there, but is not made'}"
    differ, most = [], 0.0
    for name in sorted(ours.keys() & theirs.keys()):
        a, b = ours[name], theirs[name]
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            yield True, f"{name} is {b.dtype} {list(b.shape)}, expected {a.dtype} {list(a.shape)}"
        elif not torch.equal(a, b):
            differ.append(name)
            most = max(most, (a.float() - b.float()).abs().max().item())
    if differ:
        examples = ", ".join(differ[:3]) + (", ..." if len(differ) > 3 else "")
        yield True, f"{len(differ)} of {len(ours)} tensors differ by up to {most:.1e}: {examples}"


def compare_logits(made: Path, kept: Path) -> Findings:
    """Compare two logits.npy: in the worst row, the largest difference over the row's largest logit."""
    a, b = np.load(made), np.load(kept)
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        yield True, f"{b.dtype} {b.shape}, expected {a.dtype} {a.shape}"
        return
    worst = float((np.abs(a - b).max(-1) / np.abs(a).max(-1)).max())
    yield not worst <= NEAR, f"largest relative difference {worst:.1e}"  # `not <=` also refuses NaN


COMPARISONS: dict[str, Callable[[Path, Path], Findings]] = {
    "config.json": compare_config,
    "model.safetensors": compare_weights,
    "expected.json": compare_expected,
    "logits.npy": compare_logits,
}
"""The files of a case, and the comparison of each if the bytes differ."""


def compare(made: Path, kept: Path) -> bool:
    """Compare the files of two folders of one case, and print the results. Return whether all are near enough."""
    good = True
    for file, comparison in COMPARISONS.items():
        if not (kept / file).is_file():
            print(f"  {file}: MISSING")
            good = False
        elif filecmp.cmp(made / file, kept / file, shallow=False):
            print(f"  {file}: identical")
        else:
            findings = list(comparison(made / file, kept / file))
            wrong = any(is_wrong for is_wrong, _ in findings)
            good = good and not wrong
            print(f"  {file}: {'DIFFERS' if wrong else 'near enough, not identical'}")
            for is_wrong, text in findings:
                print(f"    {'' if is_wrong else 'note: '}{text}")
    others = sorted({path.name for path in kept.glob("*")} - COMPARISONS.keys())
    if others:
        print(f"  not compared: {', '.join(others)}")
    return good


def arguments() -> argparse.Namespace:
    """Read the command line. Refuse to overwrite a case: a committed fixture is never rewritten."""
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all by default")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder of the cases")
    parser.add_argument("--check", action="store_true", help="compare with DIR instead of writing to it")
    args = parser.parse_args()
    args.cases = args.cases or list(CASES)
    if unknown := [name for name in args.cases if name not in CASES]:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    if not args.check and (there := [name for name in args.cases if (args.out / name).exists()]):
        parser.error(f"{args.out} has {', '.join(there)} already: take another folder, or --check")
    return args


@torch.no_grad()
def main() -> int:
    """Make and write or compare the cases; returns the exit status: 1 if --check found a difference."""
    args = arguments()
    torch.set_num_threads(1)  # the division of a sum among threads changes its rounding
    transformers.utils.logging.disable_progress_bar()
    versions = ", ".join(f"{module.__name__} {module.__version__}" for module in (torch, transformers, np))
    print(f"{versions}, CPU {torch.backends.cpu.get_cpu_capability()}")
    good = True
    for name in args.cases:
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder)
            print(f"{name}: {make(name, made)}", flush=True)
            if args.check:
                good &= compare(made, args.out / name)
                continue
            (args.out / name).mkdir(parents=True)
            for file in COMPARISONS:
                shutil.copyfile(made / file, args.out / name / file)
    if args.check:
        print("all equal or near enough" if good else "some differ, see above")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
