"""The models of the GPU suite in PyTorch, with as many parameters as Keras's."""

from __future__ import annotations

import torch
from torch import nn

from tfaccel.benchmarks.gpu.tasks import VOCABULARY, Size
from tfaccel.benchmarks.synthetic_data import NUM_CLASSES

_EPSILON, _BATCH_NORM_MOMENTUM = 1e-3, 0.01  # Keras's defaults of normalization, in PyTorch's terms
_EXPANSION, _HEAD_SIZE = 4, 64


def mlp(size: Size) -> nn.Module:
    """Hidden layers of one width."""
    widths = [size.input_shape[0], *[size.width] * size.depth[0]]
    hidden = [part for i in range(len(widths) - 1) for part in (nn.Linear(widths[i], widths[i + 1]), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(widths[-1], NUM_CLASSES))


class Transformer(nn.Module):
    """An encoder with normalization before each part, and a layer on the mean of its outputs."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, size.width)
        layer = nn.TransformerEncoderLayer(
            size.width,
            max(1, size.width // _HEAD_SIZE),
            _EXPANSION * size.width,
            dropout=0.0,
            activation="gelu",
            layer_norm_eps=_EPSILON,
            batch_first=True,
            norm_first=True,
        )
        norm = nn.LayerNorm(size.width, eps=_EPSILON)
        self.encoder = nn.TransformerEncoder(layer, size.depth[0], norm=norm, enable_nested_tensor=False)
        self.head = nn.Linear(size.width, NUM_CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(tokens)).mean(dim=1))


def resnet(size: Size) -> nn.Module:
    """A ResNet of bottlenecks whose 3x3 convolutions have the strides."""
    layers: list[nn.Module] = [_Convolved(3, size.width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    channels = size.width
    for stage, num_blocks in enumerate(size.depth):
        filters = size.width * 2**stage
        for block in range(num_blocks):
            layers.append(_Bottleneck(channels, filters, 2 if stage and not block else 1, is_first=not block))
            channels = _EXPANSION * filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, NUM_CLASSES))


class _Convolved(nn.Sequential):
    def __init__(self, channels: int, filters: int, size: int = 1, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(channels, filters, size, stride, padding=size // 2, bias=False),
            nn.BatchNorm2d(filters, eps=_EPSILON, momentum=_BATCH_NORM_MOMENTUM),
        )


class _Bottleneck(nn.Module):
    def __init__(self, channels: int, filters: int, stride: int, *, is_first: bool) -> None:
        super().__init__()
        self.shortcut = _Convolved(channels, _EXPANSION * filters, 1, stride) if is_first else nn.Identity()
        self.first = _Convolved(channels, filters)
        self.second = _Convolved(filters, filters, 3, stride)
        self.third = _Convolved(filters, _EXPANSION * filters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.second(torch.relu(self.first(x))))
        return torch.relu(self.shortcut(x) + self.third(y))


MODELS = {"mlp": mlp, "transformer": Transformer, "resnet": resnet}
