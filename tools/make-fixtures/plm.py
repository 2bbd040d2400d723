"""PLM, which transformers has no class for: its attention is DeepSeek's without the low-rank queries, its feed-forward
block the square of ReLU between two projections. Written from the published description (arXiv 2503.12167) and the
names of the tensors in its files."""

from torch import Tensor, nn
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM


class PlmConfig(DeepseekV3Config):
    """A DeepSeek-V3 whose layers are all dense."""

    model_type = "plm"

    def __post_init__(self, **kwargs):
        self.first_k_dense_replace = self.num_hidden_layers
        super().__post_init__(**kwargs)


class SquaredRelu(nn.Module):
    """down(relu(up(x))²), without a gate."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(nn.functional.relu(self.up_proj(x)).square())


class PlmForCausalLM(DeepseekV3ForCausalLM):
    """DeepSeek-V3's dense decoder with PLM's feed-forward blocks."""

    config_class = PlmConfig

    def __init__(self, config: PlmConfig) -> None:
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp = SquaredRelu(config.hidden_size, config.intermediate_size)
        self.tie_weights()
