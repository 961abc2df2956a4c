"""What layers cost, counted from their shapes without TensorFlow: multiplications of an example, and parameters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerCost:
    """What one layer or several together cost; costs can be added.

    Args:
        multiplications: of one example's forward pass.
        num_parameters: trainable numbers.
    """

    multiplications: int = 0
    num_parameters: int = 0

    def __add__(self, other: LayerCost) -> LayerCost:
        return LayerCost(self.multiplications + other.multiplications, self.num_parameters + other.num_parameters)

    @property
    def flops_per_example(self) -> float:
        """Floating-point operations of one example's forward and backward pass.

        A multiplication and an addition are two operations; the backward pass takes twice the forward pass.
        """
        return 6.0 * self.multiplications


def layer_cost(num_inputs: int, num_units: int, *, positions: int = 1, per_unit: int = 1) -> LayerCost:
    """The cost of a dense layer, a convolution, or whatever else multiplies a kernel at many places.

    Args:
        num_inputs: numbers from which each unit is calculated; of a 3x3 convolution, 9 times the channels.
        num_units: units or filters.
        positions: places of an example at which the same kernel is used; of a transposed convolution, of its input.
        per_unit: trainable numbers of each unit beside the kernel's: 1 for a bias, 2 for a normalisation, 3 for both.

    Example:
        >>> layer_cost(9 * 3, 32, positions=8 * 8)
        LayerCost(multiplications=55296, num_parameters=896)
    """
    return LayerCost(num_inputs * num_units * positions, (num_inputs + per_unit) * num_units)
