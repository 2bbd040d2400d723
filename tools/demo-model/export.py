"""Checkpoint to Hugging Face folder: weights under DeepSeek-V3's names, configuration, tokenizer.

python3 export.py --work work --checkpoint checkpoint.pt --out work/hf
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from config import RMS_NORM_EPS, ModelConfig
from data import WORK
from model import Block, Model
from tokenizer import BOS, CHAT_TEMPLATE, EOS, PAD, SPECIAL_TOKENS


def interleaved(rows: Tensor) -> Tensor:
    """Rotary rows (..., width, columns) from even half and odd half back to pairs side by side."""
    even, odd = rows.chunk(2, -2)
    return torch.stack([even, odd], -2).flatten(-3, -2)


def attention_weights(block: Block, config: ModelConfig) -> dict[str, Tensor]:
    """A layer's attention."""
    query, latent, rotary = block.down.split(
        [config.q_lora_rank, config.kv_lora_rank, config.qk_rope_head_dim]
    )
    query_up = block.query_up.view(config.num_attention_heads, config.qk_head_dim, -1)
    nope, rope = query_up.split([config.qk_nope_head_dim, config.qk_rope_head_dim], 1)
    return {
        "q_a_proj.weight": query,
        "q_a_layernorm.weight": block.query_norm,
        "q_b_proj.weight": torch.cat([nope, interleaved(rope)], 1).flatten(0, 1),
        "kv_a_proj_with_mqa.weight": torch.cat([latent, interleaved(rotary)]),
        "kv_a_layernorm.weight": block.latent_norm,
        "kv_b_proj.weight": block.key_value_up,
        "o_proj.weight": block.output,
    }


def gated_weights(gate_up: Tensor, down: Tensor) -> dict[str, Tensor]:
    """A feed-forward part: the stacked gate and up projections apart, and the down projection."""
    gate, up = gate_up.chunk(2)
    return {"gate_proj.weight": gate, "up_proj.weight": up, "down_proj.weight": down}


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under longer names."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


def layer_weights(block: Block, config: ModelConfig) -> dict[str, Tensor]:
    """Everything in a layer."""
    tensors: dict[str, Tensor] = {
        "input_layernorm.weight": block.input_norm,
        "post_attention_layernorm.weight": block.ffn_norm,
    }
    tensors |= prefixed("self_attn.", attention_weights(block, config))
    if not block.has_experts:
        return tensors | prefixed("mlp.", gated_weights(block.gate_up, block.ffn_down))
    tensors |= prefixed("mlp.shared_experts.", gated_weights(block.gate_up, block.ffn_down))
    tensors["mlp.gate.weight"] = block.router
    tensors["mlp.gate.e_score_correction_bias"] = block.bias
    for expert, (gate_up, down) in enumerate(zip(block.expert_gate_up, block.expert_down)):
        tensors |= prefixed(f"mlp.experts.{expert}.", gated_weights(gate_up, down))
    return tensors


def named_weights(model: Model) -> dict[str, Tensor]:
    """All weights under the names of a DeepSeek-V3 checkpoint, float32.

    The MTP layer is the layer after the last, and has copies of the embedding and the head, as in DeepSeek's
    files.
    """
    tensors: dict[str, Tensor] = {
        "model.embed_tokens.weight": model.embedding,
        "lm_head.weight": model.head,
        "model.norm.weight": model.norm,
    }
    for number, block in enumerate(model.blocks()):
        tensors |= prefixed(f"model.layers.{number}.", layer_weights(block, model.config))
    mtp: dict[str, Tensor] = {
        "enorm.weight": model.mtp_embedding_norm,
        "hnorm.weight": model.mtp_hidden_norm,
        "eh_proj.weight": model.mtp_projection,
        "shared_head.norm.weight": model.mtp_norm,
        "shared_head.head.weight": model.head,
        "embed_tokens.weight": model.embedding,
    }
    tensors |= prefixed(f"model.layers.{model.config.num_hidden_layers}.", mtp)
    return {name: tensor.detach().float().contiguous().clone() for name, tensor in tensors.items()}


def model_json(config: ModelConfig, dtype: torch.dtype) -> dict[str, object]:
    """The content of config.json."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "moe_intermediate_size": config.moe_intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_attention_heads,
        "n_shared_experts": 1,
        "n_routed_experts": config.n_routed_experts,
        "routed_scaling_factor": config.routed_scaling_factor,
        "kv_lora_rank": config.kv_lora_rank,
        "q_lora_rank": config.q_lora_rank,
        "qk_rope_head_dim": config.qk_rope_head_dim,
        "v_head_dim": config.v_head_dim,
        "qk_nope_head_dim": config.qk_nope_head_dim,
        "n_group": config.n_group,
        "topk_group": config.topk_group,
        "num_experts_per_tok": config.num_experts_per_tok,
        "first_k_dense_replace": config.first_k_dense_replace,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": RMS_NORM_EPS,
        "rope_theta": config.rope_theta,
        "rope_interleave": True,
        "tie_word_embeddings": False,
        "num_nextn_predict_layers": 1,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "ep_size": 1,
        "moe_layer_freq": 1,
        "initializer_range": 0.02,
        "use_cache": True,
        "rope_scaling": None,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def tokenizer_json(config: ModelConfig) -> dict[str, object]:
    """The content of tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": SPECIAL_TOKENS[BOS],
        "eos_token": SPECIAL_TOKENS[EOS],
        "pad_token": SPECIAL_TOKENS[PAD],
        "clean_up_tokenization_spaces": False,
        "model_max_length": config.max_position_embeddings,
        "chat_template": CHAT_TEMPLATE,
    }


def write_folder(model: Model, tokenizer: Path, out: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Writes the folder; weights in `dtype`, but the correction biases in float32, as DeepSeek has them."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor if name.endswith("e_score_correction_bias") else tensor.to(dtype)
        for name, tensor in named_weights(model).items()
    }
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    files = {
        "config.json": model_json(model.config, dtype),
        "generation_config.json": {
            "bos_token_id": BOS,
            "eos_token_id": EOS,
            "pad_token_id": PAD,
            "do_sample": False,
        },
        "tokenizer_config.json": tokenizer_json(model.config),
    }
    for name, content in files.items():
        (out / name).write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")
    Tokenizer.from_file(str(tokenizer)).save(str(out / "tokenizer.json"))


def main() -> None:
    """Exports a checkpoint."""
    parser = argparse.ArgumentParser(
        description="Writes a checkpoint as a Hugging Face folder, weights in bfloat16."
    )
    parser.add_argument(
        "--work", type=Path, default=WORK, help="folder with the checkpoint and tokenizer.json"
    )
    parser.add_argument("--checkpoint", default="checkpoint.pt", help="checkpoint in the work folder")
    parser.add_argument("--out", type=Path, help="folder to write (default: hf in the work folder)")
    options = parser.parse_args()
    model = Model()
    model.load_state_dict(torch.load(options.work / options.checkpoint))
    write_folder(model, options.work / "tokenizer.json", options.out or options.work / "hf")


if __name__ == "__main__":
    main()
