#!/usr/bin/env python3
"""Make the fixture of the MTP layer: a small random DeepSeek-V3 with the logits of its layer for multi-token prediction.

    make_mtp.py --out DIR        write DIR/v3-mtp, which must not exist

transformers runs the model and one decoder layer more, of its own class; what stands around that layer is written out here
from DeepSeek-V3's report (arXiv:2412.19437, section 2.2) and its checkpoint's names. Float32 on the CPU, one thread.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer, DeepseekV3RMSNorm

from cases import Case
from make_fixtures import build, fill, save

SEED = 1
TOKENS = 24
SIZES = dict(
    vocab_size=192,
    hidden_size=64,
    intermediate_size=96,
    moe_intermediate_size=32,
    num_hidden_layers=2,
    first_k_dense_replace=1,
    num_attention_heads=4,
    num_key_value_heads=4,
    n_routed_experts=8,
    n_shared_experts=1,
    num_experts_per_tok=2,
    n_group=4,
    topk_group=2,
    q_lora_rank=48,
    kv_lora_rank=32,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=20,
    max_position_embeddings=256,
    rms_norm_eps=1e-6,
    attention_bias=False,
    topk_method="noaux_tc",
    norm_topk_prob=True,
    routed_scaling_factor=2.5,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=None,
    rope_parameters=dict(rope_type="default", rope_theta=10000.0),
)


class MtpLayer(nn.Module):
    """The layer after the last one, named as in DeepSeek-V3's checkpoint, with its own `embed_tokens` and head."""

    def __init__(self, config: DeepseekV3Config) -> None:
        super().__init__()
        width, vocabulary = config.hidden_size, config.vocab_size
        self.layer = DeepseekV3DecoderLayer(config, layer_idx=config.num_hidden_layers)
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.enorm, self.hnorm, self.head_norm = (
            DeepseekV3RMSNorm(width, eps=config.rms_norm_eps) for _ in range(3)
        )
        self.eh_proj = nn.Linear(2 * width, width, bias=False)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, hidden: Tensor, next_tokens: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """Logits (T, V) of the tokens after `next_tokens`; `hidden` (T, width) has passed the model's final norm."""
        joined = torch.cat([self.enorm(self.embed_tokens(next_tokens)), self.hnorm(hidden)], dim=-1)
        count = len(next_tokens)
        mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
        out = self.layer(self.eh_proj(joined)[None], attention_mask=mask, position_embeddings=rotary)
        out = out[0] if isinstance(out, tuple) else out
        return self.head(self.head_norm(out[0] if out.ndim == 3 else out))

    def tensors(self, number: int) -> dict[str, Tensor]:
        """Its tensors as a checkpoint names them."""
        names = {"head_norm.weight": "shared_head.norm.weight", "head.weight": "shared_head.head.weight"}
        state = {names.get(k, k.removeprefix("layer.")): w for k, w in self.state_dict().items()}
        experts = [k for k in state if k.startswith("mlp.experts.")]
        for key in experts:
            split_experts(state, key)
        return {f"model.layers.{number}.{k}": w.clone() for k, w in state.items()}


def split_experts(state: dict[str, Tensor], key: str) -> None:
    """Splits transformers' stacked experts into one matrix per expert, as in checkpoints."""
    stacked = state.pop(key)
    for expert, matrix in enumerate(stacked):
        start = f"mlp.experts.{expert}"
        if key.endswith("gate_up_proj"):
            gate, up = matrix.chunk(2, dim=0)
            state[f"{start}.gate_proj.weight"], state[f"{start}.up_proj.weight"] = gate, up
        else:
            state[f"{start}.down_proj.weight"] = matrix


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    folder = parser.parse_args().out / "v3-mtp"
    folder.mkdir(parents=True)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)

    model = build(Case("DeepseekV3Config", SIZES, TOKENS))
    fill(model, SEED)
    model.config._attn_implementation = "eager"
    mtp = MtpLayer(model.config).eval()
    fill(mtp, SEED + 100)
    tokens = torch.randint(2, SIZES["vocab_size"], (TOKENS,), generator=torch.Generator().manual_seed(SEED))
    hidden = model.model(tokens[None]).last_hidden_state[0]
    places = torch.arange(TOKENS - 1)[None]
    rotary = model.model.rotary_emb(hidden[None], places)
    logits = mtp(hidden[:-1], tokens[1:], rotary)

    save(model, folder)
    path = folder / "model.safetensors"
    more = {k: (w.bfloat16() if w.ndim > 1 else w).contiguous() for k, w in mtp.tensors(2).items()}
    save_file(load_file(path) | more, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["num_nextn_predict_layers"] = 1
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "expected.json").write_text(json.dumps(dict(tokens=tokens.tolist(), seed=SEED)))
    np.save(folder / "mtp_logits.npy", logits.numpy())
    print(f"{folder}: deviation of the logits {logits.std():.2f}")


if __name__ == "__main__":
    main()
