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


# the head's parts (24, 16, v 20) and the latents (48, 80) all differ: taking one for another does not fit
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

# the first layer is dense, the two others have experts: both kinds in one model
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


# router of DeepSeek-V2 and V2-Lite: softmax scores, weights not normalised
V2_ROUTER: Arguments = dict(scoring_func="softmax", norm_topk_prob=False)
V2_LITE: Arguments = dict(
    SIZES | EXPERTS | V2_ROUTER,
    q_lora_rank=None,
    n_shared_experts=2,
    topk_method="greedy",
    routed_scaling_factor=1.0,
)

# router of DeepSeek-V3: sigmoid scores, a correction bias for the choice alone
V3_ROUTER: Arguments = dict(
    scoring_func="sigmoid",
    topk_method="noaux_tc",
    n_group=4,
    topk_group=2,
    norm_topk_prob=True,
    routed_scaling_factor=2.5,
)
V3: Arguments = SIZES | EXPERTS | V3_ROUTER | dict(n_routed_experts=16, num_experts_per_tok=4)

# two layers of a hybrid family, both with latent attention; transformers' own spelling of the keys
HYBRID: Arguments = dict(
    SIZES,
    num_hidden_layers=2,
    layer_types=["full_attention"] * 2,
    moe_intermediate_size=32,
    num_experts_per_tok=3,
    n_shared_experts=1,
    norm_topk_prob=True,
)

# queries without a low-rank projection, as the class has no key for one
LING: Arguments = {key: value for key, value in HYBRID.items() if key != "q_lora_rank"}

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
}
