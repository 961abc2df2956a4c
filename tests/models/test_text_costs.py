"""What the text recipes say that their models cost is what the models are."""

import math

import pytest

from tfaccel.planning.layer_costs import layer_cost
from tfaccel.planning.text_costs import attention_cost, lstm_cost, sequence_to_sequence_cost, transformer_cost
from tfaccel.recipes import text_classification, text_generation
from tfaccel.recipes.text_classification import ModelName as Reader
from tfaccel.recipes.text_generation import ModelName as Writer

SMALL = {"width": 32, "num_layers": 3}


def num_parameters(model):
    return sum(math.prod(weight.shape) for weight in model.trainable_weights)


@pytest.mark.parametrize("name", Reader.__args__)
def test_parameters_of_a_classifier(logical_devices, name):
    model = text_classification.build_model(name, 90, 20, num_classes=3, dropout=0.1, remat=False)
    assert text_classification.cost(name, 90, 20, num_classes=3).num_parameters == num_parameters(model)


@pytest.mark.parametrize("name", Writer.__args__)
def test_parameters_of_a_writer(logical_devices, name):
    model = text_generation.build_model(name, 90, **SMALL, dropout=0.1, remat=False)
    assert text_generation.cost(name, 90, **SMALL).num_parameters == num_parameters(model)


@pytest.mark.parametrize("num_copied", [None, 5])
def test_parameters_of_an_encoder_and_a_decoder(logical_devices, num_copied):
    from tfaccel.models.sequence_to_sequence import sequence_to_sequence

    shape = {"width": 32, "num_blocks": 2, "num_copied": num_copied}
    model = sequence_to_sequence((30, 30), (12, 10), **shape)
    assert sequence_to_sequence_cost((30, 30), (12, 10), **shape).num_parameters == num_parameters(model)


def test_multiplications_grow_as_they_should():
    assert lstm_cost(8, 4, length=10).multiplications == 10 * 4 * 4 * (8 + 4)
    # Four projections; the scores and what they select take the square of the length.
    assert attention_cost(8, length=5, context_length=5).multiplications == 5 * 4 * 8**2 + 2 * 5**2 * 8
    one, two = (transformer_cost(30, length=5, width=8, num_blocks=number).multiplications for number in (1, 2))
    assert two == 2 * one == 2 * (5 * 12 * 8**2 + 2 * 5**2 * 8)
    plain, copying = (
        sequence_to_sequence_cost((30, 30), (6, 5), width=8, num_blocks=1, num_copied=number) for number in (None, 4)
    )
    pointer_and_gate = layer_cost(8, 8, positions=5) + layer_cost(8, 1, positions=5)
    assert copying.multiplications - plain.multiplications == pointer_and_gate.multiplications + 5 * 6 * (8 + 34)


def test_steps_with_matrices_are_large_enough_for_bfloat16_and_those_without_are_not():
    from tfaccel.recipes import summarization, translation

    def operations(work):
        return work.flops_per_example * work.global_batch_size

    assert operations(text_classification.workload()) < 1e6
    large = [
        text_classification.workload(model="lstm"),
        text_classification.workload(model="transformer"),
        text_generation.workload(),
        translation.workload(),
        summarization.workload(),
    ]
    assert min(map(operations, large)) > 1e9
