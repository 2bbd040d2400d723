"""The cases: which models of the MLA family the fixtures stand for, as arguments of configuration classes.

Only data, so that it can be read (and imported) without torch. Each case is a small model with the options of
its published namesake: the kind of router, of query projection and of rope are what it is there to test.
Changing an argument changes a committed fixture: add a case instead.
"""

from dataclasses import dataclass
from typing import Any

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One fixture: a class of transformers by name, its keyword arguments, and the length of the prompt.

    `full_gate`: attention's output is gated by element, which make_fixtures.py adds to the class.
    """

    config_class: str
    arguments: Arguments
    prompt: int = 40
    full_gate: bool = False
    left_out: tuple[str, ...] = ()
    """Ends of the names of tensors that are zero here and that the file leaves out, as published files do."""
    tiny_latents: bool = False
    """Latents so small that the epsilon of their norms shows, and norms that take `rms_norm_eps` for them too:
    as llama.cpp and vLLM have it, where transformers keeps its class default 1e-6."""


# The head's parts (24, 16, v 20) and the latents (48, 80) all differ, so that mixing them up fails.
SIZES: Arguments = dict(
    hidden_size=96,
    intermediate_size=160,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=4,
    kv_lora_rank=48,
    q_lora_rank=80,
    qk_nope_head_dim=24,
    qk_rope_head_dim=16,
    v_head_dim=20,
    vocab_size=320,
    max_position_embeddings=1024,
    rms_norm_eps=1e-6,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=None,
)

# The first layer is dense, the other two have experts.
EXPERTS: Arguments = dict(
    n_routed_experts=8,
    num_experts_per_tok=2,
    n_shared_experts=1,
    moe_intermediate_size=48,
    first_k_dense_replace=1,
)


def rope(theta: float) -> Arguments:
    """Rotary embedding without scaling."""
    return dict(rope_type="default", rope_theta=theta)


def yarn(mscale: float) -> Arguments:
    """YaRN over 128 original positions: a prompt of 200 runs past them."""
    return dict(
        rope_type="yarn",
        rope_theta=10000.0,
        factor=8.0,
        original_max_position_embeddings=128,
        beta_fast=32,
        beta_slow=1,
        mscale=mscale,
        mscale_all_dim=mscale,
    )


# Router of DeepSeek-V2 and V2-Lite: softmax scores, weights not normalised.
V2_ROUTER: Arguments = dict(scoring_func="softmax", norm_topk_prob=False)
V2_LITE: Arguments = dict(
    SIZES | EXPERTS | V2_ROUTER,
    q_lora_rank=None,
    n_shared_experts=2,
    topk_method="greedy",
    routed_scaling_factor=1.0,
)

# Router of DeepSeek-V3: sigmoid scores, and a correction bias that affects only the selection.
V3_ROUTER: Arguments = dict(
    scoring_func="sigmoid",
    topk_method="noaux_tc",
    n_group=4,
    topk_group=2,
    norm_topk_prob=True,
    routed_scaling_factor=2.5,
)
V3: Arguments = SIZES | EXPERTS | V3_ROUTER | dict(n_routed_experts=16, num_experts_per_tok=4)

# Two layers of a hybrid family, both with latent attention. Keys as transformers spells them.
HYBRID: Arguments = dict(
    SIZES,
    num_hidden_layers=2,
    layer_types=["full_attention"] * 2,
    moe_intermediate_size=32,
    num_experts_per_tok=3,
    n_shared_experts=1,
    norm_topk_prob=True,
)

# Queries without a low-rank projection, for which the class has no key.
LING: Arguments = {key: value for key, value in HYBRID.items() if key != "q_lora_rank"}

# Four layers, most of them recurrent. Small, since they have many projections.
TINY_HYBRID: Arguments = {key: value for key, value in LING.items() if key != "layer_types"} | dict(
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=4,
    kv_lora_rank=32,
    qk_nope_head_dim=12,
    qk_rope_head_dim=8,
    v_head_dim=14,
    vocab_size=160,
    moe_intermediate_size=12,
)

# Smaller than SIZES where this loses nothing: a repository keeps every fixture forever.
SMALL: Arguments = SIZES | dict(hidden_size=64, intermediate_size=96, q_lora_rank=40, vocab_size=192)
SMALL_EXPERTS: Arguments = SMALL | EXPERTS | dict(moe_intermediate_size=24)

# Sparse attention that selects all tokens of the prompt and 16 more: equal to dense attention.
SPARSE: Arguments = dict(index_topk=64, index_n_heads=2, index_head_dim=24)

CASES: dict[str, Case] = {
    "v2-lite": Case("DeepseekV2Config", V2_LITE | dict(rope_parameters=rope(1e4))),
    "v2-lite-yarn": Case("DeepseekV2Config", V2_LITE | dict(rope_parameters=yarn(0.707)), prompt=200),
    "v2-groups": Case(
        "DeepseekV2Config",
        dict(
            SIZES | EXPERTS | V2_ROUTER,
            n_routed_experts=16,
            num_experts_per_tok=3,
            topk_method="group_limited_greedy",
            n_group=4,
            topk_group=2,
            routed_scaling_factor=16.0,
            rope_parameters=rope(1e4),
        ),
    ),
    "v3": Case("DeepseekV3Config", V3 | dict(rope_parameters=rope(1e4))),
    "v3-yarn": Case("DeepseekV3Config", V3 | dict(rope_parameters=yarn(1.0)), prompt=200),
    "moonlight": Case(
        "DeepseekV3Config",
        dict(
            SIZES | EXPERTS | V3_ROUTER,
            q_lora_rank=None,
            n_group=1,
            topk_group=1,
            num_experts_per_tok=3,
            n_shared_experts=2,
            routed_scaling_factor=2.446,
            rope_parameters=rope(5e4),
        ),
    ),
    "glm-4.7-flash": Case(
        "Glm4MoeLiteConfig",
        dict(
            SIZES | EXPERTS,
            num_attention_heads=5,
            num_key_value_heads=5,
            qk_nope_head_dim=40,
            v_head_dim=56,
            topk_method="noaux_tc",
            num_experts_per_tok=4,
            n_group=1,
            topk_group=1,
            norm_topk_prob=True,
            routed_scaling_factor=1.8,
            rope_parameters=rope(1e6),
        ),
    ),
    "youtu": Case("YoutuConfig", SIZES | dict(tie_word_embeddings=True, rope_parameters=rope(1.6e6))),
    "minicpm3": Case(
        "MiniCPM3Config",
        dict(
            SIZES,
            tie_word_embeddings=False,
            scale_emb=12.0,
            scale_depth=1.4,
            dim_model_base=64,
            rope_parameters=rope(1e4),
        ),
    ),
    "ling-3": Case(
        "BailingHybridConfig",
        dict(
            LING,
            intermediate_size=96,
            first_k_dense_replace=1,
            num_local_experts=8,
            n_group=4,
            topk_group=2,
            num_mtp_layers=0,
            routed_scaling_factor=2.5,
            rope_parameters=rope(6e6),
        ),
    ),
    "kimi-linear": Case(
        "KimiLinearConfig",
        dict(HYBRID, q_lora_rank=None, first_k_dense_replace=0, num_local_experts=6, n_group=1, topk_group=1),
    ),
    "ling-3-kda": Case(
        "BailingHybridConfig",
        dict(
            TINY_HYBRID,
            first_k_dense_replace=1,
            layer_group_size=2,
            head_dim=16,
            short_conv_kernel_size=4,
            kda_safe_gate=True,
            kda_lower_bound=-5.0,
            no_kda_lora=True,
            num_local_experts=8,
            n_group=4,
            topk_group=2,
            num_mtp_layers=0,
            routed_scaling_factor=2.5,
            rope_parameters=rope(6e6),
        ),
        prompt=150,
    ),
    "kimi-linear-kda": Case(
        "KimiLinearConfig",
        dict(
            TINY_HYBRID,
            first_k_dense_replace=0,
            q_lora_rank=None,
            linear_attn_config=dict(
                full_attn_layers=[3], kda_layers=[1, 2, 4], num_heads=3, head_dim=18, short_conv_kernel_size=4
            ),
            mla_use_nope=True,
            num_local_experts=6,
            n_group=1,
            topk_group=1,
            routed_scaling_factor=2.446,
        ),
        prompt=150,
    ),
    "nope-gate": Case(
        "KimiLinearConfig",
        dict(
            HYBRID,
            qk_rope_head_dim=0,
            first_k_dense_replace=0,
            num_local_experts=4,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            mla_use_nope=True,
            mla_use_output_gate=True,
        ),
        full_gate=True,
    ),
    "glm-dsa": Case(
        "GlmMoeDsaConfig",
        dict(
            SMALL_EXPERTS | SPARSE,
            num_attention_heads=5,
            num_key_value_heads=5,
            v_head_dim=28,
            num_experts_per_tok=3,
            rms_norm_eps=1e-5,
            indexer_types=["full", "full", "shared"],
            rope_parameters=rope(1e6),
        ),
    ),
    "deepseek32": Case(
        "DeepseekV32Config", dict(SMALL_EXPERTS | SPARSE, n_group=4, topk_group=2, rope_parameters=yarn(1.0))
    ),
    "mistral4": Case(
        "Mistral4Config",
        dict(
            SMALL_EXPERTS,
            num_experts_per_tok=4,
            first_k_dense_replace=0,
            rope_parameters=yarn(1.0)
            | dict(factor=4.0, original_max_position_embeddings=32, llama_4_scaling_beta=0.1),
        ),
        prompt=100,
    ),
    "axk1": Case(
        "AXK1Config",
        dict(SMALL_EXPERTS, n_routed_experts=12, n_group=4, topk_group=2, rope_parameters=rope(1e4)),
        left_out=("e_score_correction_bias",),
    ),
    "v3-bias": Case(
        "DeepseekV3Config",
        dict(SMALL_EXPERTS | V3_ROUTER, n_group=1, topk_group=1, attention_bias=True, rope_parameters=rope(1e4)),
    ),
    "v3-tiny-latents": Case(
        "DeepseekV3Config",
        dict(SMALL, n_routed_experts=8, first_k_dense_replace=3, rms_norm_eps=1e-5, rope_parameters=rope(1e4)),
        tiny_latents=True,
    ),
    "minicpm3-long": Case(
        "MiniCPM3Config",
        dict(
            SMALL,
            tie_word_embeddings=False,
            scale_emb=12.0,
            scale_depth=1.4,
            dim_model_base=48,
            rope_parameters=rope(1e4)
            | dict(
                rope_type="longrope",
                original_max_position_embeddings=32,
                short_factor=[1.0] * 8,
                long_factor=[1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0],
            ),
        ),
    ),
    "plm": Case(
        "PlmConfig",
        dict(SMALL, q_lora_rank=None, tie_word_embeddings=True, hidden_act="relu2", rope_parameters=rope(1e5)),
    ),
}
