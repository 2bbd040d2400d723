#!/usr/bin/env python3
"""Dump the values that a Hugging Face transformers model passes through, for `latent diff --dump`.

    dump-activations.py MODEL OUT.safetensors --tokens 1,2,3

MODEL is a folder with config.json and safetensors, of any model of the MLA family that transformers has (or, with
--trust-remote-code, that brings its own code and names its modules as DeepSeek does). The model runs once over the
tokens, in float32 on the CPU unless asked otherwise, with hooks on its modules; nothing in it is changed. The file
holds `tokens` and a matrix of rows for each value, under the names that docs/debugging.md lists.

    latent diff -m MODEL --precision exact --dump OUT.safetensors

then says where Latent computes something else. Needs torch, transformers and safetensors (for the versions that
the fixtures were made with, see tools/make-fixtures/requirements.txt).
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM


class Dump:
    """The values found so far: `add` takes one of [1, rows, ...] or [rows, ...]."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.values: dict[str, Tensor] = {}

    def add(self, name: str, value: Tensor) -> None:
        """Store a copy as rows of float32. A second value of the same name is an error."""
        if value.numel() % self.rows:
            raise ValueError(f"{name}: {list(value.shape)} cannot be cut into {self.rows} rows")
        if name in self.values:
            raise ValueError(f"{name} was computed twice: does the model run a layer more than once?")
        self.values[name] = value.detach().to("cpu", torch.float32).reshape(self.rows, -1).clone()


def first(output: Any) -> Tensor:
    """A module's output, or the first part of it."""
    return output[0] if isinstance(output, tuple) else output


def on_output(module: nn.Module | None, name: str, dump: Dump) -> None:
    """Store the output of a module, if the model has it."""
    if module is not None:
        module.register_forward_hook(lambda _, __, output: dump.add(name, first(output)))


def on_input(module: nn.Module | None, name: str, dump: Dump) -> None:
    """Store the input of a module."""
    if module is not None:
        module.register_forward_pre_hook(lambda _, inputs: dump.add(name, inputs[0]))


def part(module: nn.Module, *names: str) -> nn.Module | None:
    """The first submodule of one of these names."""
    return next((found for name in names if (found := getattr(module, name, None)) is not None), None)


def watch_router(gate: nn.Module, prefix: str, experts: int, dump: Dump) -> None:
    """Store a router's logits, and its choice as a row of weights over all experts.

    Routers return logits, weights and ids in one order or another, and some no logits: they are told apart by
    type and width, as in transformers 5 (logits, weights, ids) and in DeepSeek's own code (ids, weights, ...).
    """

    def hook(_: nn.Module, __: Any, output: Any) -> None:
        parts = [p for p in (output if isinstance(output, tuple) else (output,)) if isinstance(p, Tensor)]
        ids = next((p for p in parts if not p.is_floating_point()), None)
        logits = next((p for p in parts if p.is_floating_point() and p.shape[-1] == experts), None)
        if logits is not None:
            dump.add(f"{prefix}.router_logits", logits)
        if ids is None:
            return
        ids = ids.reshape(dump.rows, -1)
        weights = next((p for p in parts if p.is_floating_point() and p is not logits), None)
        if weights is not None and weights.numel() == ids.numel():
            routing = torch.zeros(dump.rows, experts)
            routing.scatter_(1, ids.cpu().long(), weights.detach().cpu().float().reshape(dump.rows, -1))
            dump.add(f"{prefix}.routing", routing)

    gate.register_forward_hook(hook)


def watch_mlp(mlp: nn.Module, prefix: str, dump: Dump) -> None:
    """Store the halves and the activation of a gated (or plain) MLP."""
    on_output(part(mlp, "gate_proj"), f"{prefix}.ffn_gate", dump)
    on_output(part(mlp, "up_proj"), f"{prefix}.ffn_up", dump)
    on_input(part(mlp, "down_proj"), f"{prefix}.ffn_act", dump)


def watch_rope(attention: nn.Module, layer: list[str], dump: Dump) -> None:
    """Store what the functions that rotate queries and keys return.

    They are functions of the module's file, not modules, so they are wrapped there, once. `layer` holds the prefix
    of the layer that is running. transformers' interleaved form returns the pairs (0, 1), (2, 3), ... as halves:
    the rotated even numbers, then the odd ones. They are put back in the order in which the weights have them.
    """
    file = sys.modules[type(attention).__module__]
    for name in ("apply_rotary_pos_emb", "apply_rotary_pos_emb_interleave", "apply_rotary_emb"):
        original = getattr(file, name, None)
        if original is None or hasattr(original, "watched"):
            continue
        halves = name.endswith("interleave")

        def watched(*args: Any, original: Any = original, halves: bool = halves, **kwargs: Any) -> Any:
            rotated = original(*args, **kwargs)
            if not layer[0]:  # not selected by --layers
                return rotated
            for name, value in zip(("q_rope", "k_rope"), rotated[:2], strict=True):
                if halves:
                    value = value.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
                # [1, heads, rows, elements] to [rows, heads, elements].
                dump.add(f"{layer[0]}.{name}", value[0].transpose(0, 1))
            return rotated

        watched.watched = True  # type: ignore[attr-defined]
        setattr(file, name, watched)


def watch_layer(block: nn.Module, prefix: str, running: list[str], experts: int, dump: Dump) -> None:
    """Hook one layer."""

    def begins(*_: Any) -> None:
        running[0] = prefix

    def ends(*_: Any) -> None:
        running[0] = ""

    attention, mlp = block.self_attn, block.mlp
    attention.register_forward_pre_hook(begins)
    attention.register_forward_hook(ends)
    on_output(part(block, "input_layernorm"), f"{prefix}.attn_norm", dump)
    on_output(part(attention, "q_a_proj"), f"{prefix}.q_a", dump)
    on_output(part(attention, "q_a_layernorm"), f"{prefix}.q_a_norm", dump)
    on_output(part(attention, "q_b_proj", "q_proj"), f"{prefix}.q", dump)
    on_output(part(attention, "kv_a_proj_with_mqa"), f"{prefix}.kv_a", dump)
    on_output(part(attention, "kv_a_layernorm"), f"{prefix}.latent", dump)
    watch_rope(attention, running, dump)
    on_input(part(attention, "o_proj"), f"{prefix}.attn", dump)
    on_output(part(attention, "o_proj"), f"{prefix}.attn_out", dump)
    on_input(part(block, "post_attention_layernorm"), f"{prefix}.attn_residual", dump)
    on_output(part(block, "post_attention_layernorm"), f"{prefix}.ffn_norm", dump)
    gate = part(mlp, "gate", "router")
    if gate is None:
        watch_mlp(mlp, prefix, dump)
    else:
        watch_router(gate, prefix, experts, dump)
        shared = part(mlp, "shared_experts", "shared_expert")
        if shared is not None:
            # Without shared experts, the output of the experts is ffn_out.
            on_output(part(mlp, "experts"), f"{prefix}.experts_out", dump)
            watch_mlp(shared, prefix, dump)
            on_output(shared, f"{prefix}.shared_out", dump)
    on_output(mlp, f"{prefix}.ffn_out", dump)
    on_output(block, f"{prefix}.residual", dump)


@torch.no_grad()
def collect(model: nn.Module, tokens: list[int], layers: range | None) -> dict[str, Tensor]:
    """Run the model over the tokens; the values by their names in Latent."""
    dump = Dump(len(tokens))
    decoder = model.get_decoder()
    config = model.config.get_text_config()
    experts = getattr(config, "n_routed_experts", None) or getattr(config, "num_experts", None) or 0
    on_output(decoder.embed_tokens, "embed", dump)
    running = [""]
    for index, block in enumerate(decoder.layers[: config.num_hidden_layers]):
        if layers is None or index in layers:
            watch_layer(block, f"layers.{index}", running, experts, dump)
    on_output(decoder.norm, "final_norm", dump)
    head: dict[str, Tensor] = {}
    model.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: head.update(x=inputs[0]))
    ids = torch.tensor([tokens], device=model.device)
    dump.add("logits", model(ids, use_cache=False).logits)
    scaled = head["x"].detach().to("cpu", torch.float32).reshape(len(tokens), -1)
    if not torch.equal(scaled, dump.values["final_norm"]):
        dump.add("final_scaled", scaled)
    return dump.values


def span(text: str) -> range:
    """Read A..B."""
    first_layer, _, end = text.partition("..")
    try:
        found = range(int(first_layer), int(end))
    except ValueError:
        found = range(0)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: expected A..B with A < B, such as 0..2")
    return found


def ids(text: str) -> list[int]:
    """Read token ids."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected token ids such as 1,2,3") from None


def main() -> int:
    """Read the command line, run the model, write the file."""
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("model", type=Path, help="folder of the model")
    parser.add_argument("out", type=Path, help="safetensors file to write")
    parser.add_argument("--tokens", type=ids, required=True, metavar="IDS", help="token ids: 1,2,3")
    parser.add_argument("--layers", type=span, metavar="A..B", help="only these layers")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float64"])
    parser.add_argument("--device", default="cpu", help="where to run it: cpu, cuda, ...")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that the folder brings")
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(
        args.model,
        dtype=getattr(torch, args.dtype),
        attn_implementation="eager",
        trust_remote_code=args.trust_remote_code,
        local_files_only=True,
    )
    model = model.to(args.device).eval()
    vocabulary = model.get_input_embeddings().num_embeddings
    if wrong := [token for token in args.tokens if not 0 <= token < vocabulary]:
        parser.error(f"token {wrong[0]} is outside the vocabulary of {vocabulary}")
    values = collect(model, args.tokens, args.layers)
    save_file({"tokens": torch.tensor(args.tokens, dtype=torch.int64), **values}, args.out)
    print(f"{args.out}: {len(values)} values of {len(args.tokens)} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
