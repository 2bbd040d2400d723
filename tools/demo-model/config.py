"""The demo model's shape, under the names of a DeepSeek-V3 `config.json`.

Every part of the architecture is there, each as small as it can be and still be exercised: several groups of
experts to choose from, a compressed query, a latent smaller than the heads it feeds, an MTP layer.
"""

from dataclasses import dataclass

# Epsilon of all norms, added to the mean square.
RMS_NORM_EPS = 1e-6


@dataclass(frozen=True)
class ModelConfig:
    """Sizes that the training code depends on. Defaults are the demo model's."""

    vocab_size: int = 1024
    hidden_size: int = 256
    intermediate_size: int = 768
    moe_intermediate_size: int = 128
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    n_routed_experts: int = 8
    num_experts_per_tok: int = 2
    # A group must have two experts: the router's group score is the sum over all its experts
    # (model.py).
    n_group: int = 4
    topk_group: int = 2
    routed_scaling_factor: float = 1.5
    kv_lora_rank: int = 128
    q_lora_rank: int = 256
    qk_rope_head_dim: int = 16
    qk_nope_head_dim: int = 32
    v_head_dim: int = 32
    first_k_dense_replace: int = 1
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0

    @property
    def qk_head_dim(self) -> int:
        """Width of a head's query and key: the part without position and the rotary part."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def num_moe_blocks(self) -> int:
        """Blocks with experts, the MTP layer's included."""
        return self.num_hidden_layers - self.first_k_dense_replace + 1


DEMO = ModelConfig()
