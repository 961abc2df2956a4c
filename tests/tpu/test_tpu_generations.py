import pytest

from tfaccel.errors import HardwareError
from tfaccel.extras.tpu.readiness import GENERATIONS, GIBIBYTE, parse_tpu


def test_a_generation_with_and_without_its_number_of_cores():
    assert [generation.name for generation in parse_tpu("v5e").generations] == ["v5e"]
    assert (parse_tpu("V6e-8").num_cores, parse_tpu("v6e-8").generations[0].topology) == (8, "v6e:2x2")
    assert parse_tpu("v4").num_cores == 1


def test_no_name_stands_for_one_core_of_every_generation():
    target = parse_tpu(None)
    assert ([g.name for g in target.generations], target.num_cores) == (["v2", "v3", "v4", "v5e", "v5p", "v6e"], 1)
    assert all(7 * GIBIBYTE < generation.memory_bytes < 96 * GIBIBYTE for generation in GENERATIONS)


@pytest.mark.parametrize("text", ["v5", "v5e-0", "v5e-x", "", "tpu", "v5e 8"])
def test_another_name_is_refused_with_those_that_are_there(text):
    with pytest.raises(HardwareError, match=rf"written as .*v5e-8\. Received: '{text}'\..*v2, v3, v4, v5e, v5p, v6e"):
        parse_tpu(text)


def test_a_misspelt_name_gets_its_nearest():
    with pytest.raises(HardwareError, match="Did you mean 'v5e'"):
        parse_tpu("v5ee")
