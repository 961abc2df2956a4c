"""The families' models in PyTorch: the same architectures, written as PyTorch's users write them."""

from __future__ import annotations

import torch
from torch import nn

from tfaccel.benchmarks.choice_tasks import BLOCKS_PER_STAGE, EMBEDDING_SIZE, NUM_COLUMNS, NUM_IDS, STAGE_FILTERS
from tfaccel.benchmarks.synthetic_data import NUM_CLASSES

_EPSILON, _MOMENTUM = 1e-3, 0.01  # Keras's defaults of normalization, in PyTorch's terms


def mlp() -> nn.Module:
    """Three layers, 1,024 wide."""
    sizes = (784, 1024, 1024, 1024)
    hidden = [part for i in range(3) for part in (nn.Linear(sizes[i], sizes[i + 1]), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(1024, NUM_CLASSES))


def cnn() -> nn.Module:
    """Six 3x3 convolutions, 32 to 128 filters, with batch normalization."""
    layers: list[nn.Module] = []
    channels = 3
    for filters in (32, 64, 128):
        for _ in range(2):
            layers += [_Convolved(channels, filters), nn.ReLU()]
            channels = filters
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, NUM_CLASSES))


def resnet() -> nn.Module:
    """Residual blocks of two 3x3 convolutions with batch normalization; stages end with a pool."""
    channels = STAGE_FILTERS[0]
    layers: list[nn.Module] = [_Convolved(3, channels), nn.ReLU()]
    for stage, filters in enumerate(STAGE_FILTERS):
        if stage:
            layers.append(nn.MaxPool2d(2))
        for _ in range(BLOCKS_PER_STAGE):
            layers.append(_Block(channels, filters))
            channels = filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, NUM_CLASSES))


def embedding() -> nn.Module:
    """Columns of ids that share a table of embeddings, and a small MLP."""
    return nn.Sequential(
        nn.Embedding(NUM_IDS, EMBEDDING_SIZE),
        nn.Flatten(),
        nn.Linear(NUM_COLUMNS * EMBEDDING_SIZE, 128),
        nn.ReLU(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, NUM_CLASSES),
    )


class Recurrent(nn.Module):
    """An LSTM or a GRU of 128 units, and a layer on its last output.

    Args:
        kind: `nn.LSTM`, whose second bias stays zero because Keras's LSTM has one; or `nn.GRU`.
    """

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.cells = kind(32, 128, batch_first=True)
        if kind is nn.LSTM:
            second_bias = self.cells.get_parameter("bias_hh_l0")
            nn.init.zeros_(second_bias)
            second_bias.requires_grad_(False)
        self.head = nn.Linear(128, NUM_CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, _ = self.cells(x)
        return self.head(outputs[:, -1])


class Transformer(nn.Module):
    """An encoder of 2 layers, width 256, and a layer on the mean of its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 256)
        layer = nn.TransformerEncoderLayer(
            256, 4, 1024, dropout=0.0, layer_norm_eps=_EPSILON, batch_first=True, norm_first=True
        )
        norm = nn.LayerNorm(256, eps=_EPSILON)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=norm, enable_nested_tensor=False)
        self.head = nn.Linear(256, NUM_CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(tokens)).mean(dim=1))


class _Convolved(nn.Sequential):
    def __init__(self, channels: int, filters: int, size: int = 3) -> None:
        super().__init__(
            nn.Conv2d(channels, filters, size, padding="same", bias=False),
            nn.BatchNorm2d(filters, eps=_EPSILON, momentum=_MOMENTUM),
        )


class _Block(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.shortcut = _Convolved(channels, filters, 1) if channels != filters else nn.Identity()
        self.first = _Convolved(channels, filters)
        self.second = _Convolved(filters, filters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(torch.relu(self.first(x)))
        return torch.relu(self.shortcut(x) + y)


MODELS = {
    "mlp": mlp,
    "cnn": cnn,
    "resnet": resnet,
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "transformer": Transformer,
    "embedding": embedding,
}
