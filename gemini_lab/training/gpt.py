"""A byte-level GPT in the architecture of GPT-2 (Radford et al., 2019), small enough to read.

Letters at line ends are shapes: B sequences in a batch, T tokens in a sequence, D the width of the
model, H its attention heads, V the vocabulary.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from gemini_lab.errors import ConfigError

VOCABULARY: Final = 256
"""One token a byte, so any file is a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTConfig:
    """The shape of a model."""

    layers: int  # transformer blocks
    width: int  # length of each token's vector, D; the feed-forward part is four times as wide
    heads: int  # attention heads, H; they share the width equally
    context: int  # the longest sequence the model can read, in tokens
    dropout: float = 0.1  # probability that an activation is dropped in training

    def __post_init__(self) -> None:
        if min(self.layers, self.width, self.heads, self.context) < 1:
            raise ConfigError(f"layers, width, heads and context must be at least 1 (got {self})")
        if self.width % self.heads:
            raise ConfigError(
                f"heads={self.heads} must divide width={self.width}; "
                f"try heads={self.width // 64 or 1}"
            )
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must lie in [0, 1) (got {self.dropout})")


SIZES: Final[dict[str, GPTConfig]] = {
    "tiny": GPTConfig(layers=2, width=128, heads=4, context=256),  # 0.5 M parameters
    "small": GPTConfig(layers=8, width=512, heads=8, context=512),  # 25.7 M
    "300m": GPTConfig(layers=16, width=1280, heads=20, context=1024),  # 317 M
    "1b": GPTConfig(layers=24, width=1920, heads=15, context=1024),  # 1.1 B
}
"""Named sizes: "tiny" for tests, "small" for two CPU cores, the others for GPUs."""


def named_size(name: str) -> GPTConfig:
    """Return the configuration called `name` in `SIZES`.

    Raises:
        ConfigError: There is no such size.
    """
    if name not in SIZES:
        raise ConfigError(f"no model size is called {name!r}; choose from {', '.join(SIZES)}")
    return SIZES[name]


class Attention(nn.Module):
    """Causal self-attention: a token sees itself and what came before."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.query_key_value = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """Mix each token with its past; shape (B, T, D) in and out."""
        batch, length, width = x.shape
        packed = self.query_key_value(x).view(batch, length, 3, self.heads, -1)  # B T 3 H D/H
        query, key, value = packed.permute(2, 0, 3, 1, 4)  # each B H T D/H
        mixed = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )  # B H T D/H
        joined: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))  # B T D
        return joined


class Block(nn.Module):
    """Attention, then a feed-forward layer; each is normalised before and added after."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm_feed = nn.LayerNorm(config.width)
        self.feed = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * config.width, config.width),
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer; shape (B, T, D) in and out."""
        x = x + self.dropout(self.attention(self.norm_attention(x)))  # B T D
        added: Tensor = x + self.dropout(self.feed(self.norm_feed(x)))  # B T D
        return added


class GPT(nn.Module):
    """A language model over bytes.

    The output layer has weights of its own: a tied one would be gathered by ZeRO-3 at both ends of
    the model and saves little with 256 tokens.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.token = nn.Embedding(VOCABULARY, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, VOCABULARY, bias=False)
        self._initialise()

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of predicting `targets` from `tokens`.

        Args:
            tokens: Bytes as integers, shape (B, T), T at most `config.context`.
            targets: The bytes that follow each of them, shape (B, T).

        Returns:
            A scalar in nats a byte.
        """
        places = torch.arange(tokens.shape[1], device=tokens.device)  # T
        x = self.dropout(self.token(tokens) + self.position(places))  # B T D
        for block in self.blocks:
            x = block(x)  # B T D
        logits = self.head(self.norm(x))  # B T V
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    def _initialise(self) -> None:
        """Set GPT-2's first weights: normal, and smaller in layers that add up."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                adds_up = name.endswith(("out.weight", "feed.2.weight"))
                scale = (2 * self.config.layers) ** -0.5 if adds_up else 1.0
                nn.init.normal_(parameter, std=0.02 * scale)


def parameter_count(config: GPTConfig) -> int:
    """Return how many parameters a model of this shape has, without building it."""
    width = config.width
    block = 12 * width**2 + 13 * width  # weights, then biases and two norms
    return config.layers * block + (2 * VOCABULARY + config.context) * width + 2 * width
