"""The TPU generations: memory per core, and the topology name for the TPU compiler."""

import re
from dataclasses import dataclass

from tfaccel.errors import HardwareError
from tfaccel.known_names import did_you_mean

GIBIBYTE = 2**30


@dataclass(frozen=True, kw_only=True)
class TpuGeneration:
    """One generation of TPUs.

    Args:
        name: "v5e" and so on.
        topology: the smallest topology that the compiler supports, such as "v5e:2x2".
        memory_bytes: memory of one core that a program may use, as stated in out-of-memory errors of libtpu 0.0.42's
            compiler. A v4 chip has two cores.
    """

    name: str
    topology: str
    memory_bytes: int


def _generation(name: str, topology: str, gibibytes: float) -> TpuGeneration:
    return TpuGeneration(name=name, topology=topology, memory_bytes=int(gibibytes * GIBIBYTE))


GENERATIONS = (
    _generation("v2", "v2:2x2", 7.48),
    _generation("v3", "v3:2x2", 15.48),
    _generation("v4", "v4:2x2x1", 15.25),
    _generation("v5e", "v5e:2x2", 15.75),
    _generation("v5p", "v5p:2x2x1", 95.74),
    _generation("v6e", "v6e:2x2", 31.25),
)


@dataclass(frozen=True, kw_only=True)
class TpuTarget:
    """The TPUs to check a step for.

    Args:
        generations: the selected generation, or all if none was selected.
        num_cores: number of cores that share the global batch.
    """

    generations: tuple[TpuGeneration, ...] = GENERATIONS
    num_cores: int = 1


def parse_tpu(text: str | None) -> TpuTarget:
    """Parses the value of `--tpu`: a generation ("v5e"), or a generation with a number of cores ("v5e-8").

    Args:
        text: the flag's value; None for one core of any generation.

    Raises:
        HardwareError: if it is neither; the message lists the generations.

    Example:
        >>> parse_tpu("v5e-8").num_cores
        8
    """
    if text is None:
        return TpuTarget()
    names = [generation.name for generation in GENERATIONS]
    match = re.fullmatch(r"(\w+?)(?:-([1-9]\d*))?", text.lower())
    found = [generation for generation in GENERATIONS if match is not None and generation.name == match[1]]
    if match is None or not found:
        hint = did_you_mean(text, names)
        raise HardwareError(
            f"A TPU is written as a generation, optionally with a number of cores: v5e, v5e-8. "
            f"Received: {text!r}.{hint} "
            f"Generations: {', '.join(names)}."
        )
    return TpuTarget(generations=tuple(found), num_cores=int(match[2] or 1))
