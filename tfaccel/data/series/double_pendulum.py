"""A double pendulum, integrated from its equations of motion: a series without a clear season."""

from __future__ import annotations

import numpy as np

GRAVITY = 9.81  # m/s²
_STEPS_BETWEEN = 10  # integration steps between two samples


def double_pendulum(
    num_samples: int,
    *,
    sample_seconds: float = 0.05,
    angles: tuple[float, float] = (1.5, 0.0),
    noise: float = 0.01,
    seed: int = 0,
) -> np.ndarray:
    r"""Angles of two rods of 1 m with masses of 1 kg at their ends, the second hanging from the first.

    With $\delta = \theta_1 - \theta_2$ and unit lengths and masses,

    $$\ddot\theta_1 = \frac{-3 g \sin\theta_1 - g \sin(\theta_1 - 2\theta_2) - 2 \sin\delta
    (\dot\theta_2^2 + \dot\theta_1^2 \cos\delta)}{3 - \cos 2\delta}, \quad
    \ddot\theta_2 = \frac{2 \sin\delta (2 \dot\theta_1^2 + 2 g \cos\theta_1 + \dot\theta_2^2 \cos\delta)}
    {3 - \cos 2\delta}$$

    integrated from rest with the fourth-order Runge-Kutta method.

    Args:
        num_samples: number of samples.
        sample_seconds: time between two samples.
        angles: initial angles, in radians from hanging down.
        noise: standard deviation of the measurement error, in radians.
        seed: determines that error.

    Returns:
        Both angles in radians, of shape (num_samples, 2), float64.

    Example:
        >>> double_pendulum(3, noise=0.0).round(3).tolist()
        [[1.5, 0.0], [1.488, 0.001], [1.451, 0.005]]
    """
    state = np.array([*angles, 0.0, 0.0])
    samples = np.empty((num_samples, 2))
    step = sample_seconds / _STEPS_BETWEEN
    for number in range(num_samples):
        samples[number] = state[:2]
        for _ in range(_STEPS_BETWEEN):
            k1 = derivative(state)
            k2 = derivative(state + step / 2 * k1)
            k3 = derivative(state + step / 2 * k2)
            k4 = derivative(state + step * k3)
            state = state + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return samples + noise * np.random.default_rng(seed).standard_normal(samples.shape)


def derivative(state: np.ndarray) -> np.ndarray:
    """The time derivative of a state (both angles, then both velocities), in radians and seconds."""
    angle_1, angle_2, velocity_1, velocity_2 = state.tolist()
    sin, cos = np.sin(angle_1 - angle_2), np.cos(angle_1 - angle_2)
    below = 3 - np.cos(2 * (angle_1 - angle_2))
    first = -3 * GRAVITY * np.sin(angle_1) - GRAVITY * np.sin(angle_1 - 2 * angle_2)
    first -= 2 * sin * (velocity_2**2 + velocity_1**2 * cos)
    second = 2 * sin * (2 * velocity_1**2 + 2 * GRAVITY * np.cos(angle_1) + velocity_2**2 * cos)
    return np.array([velocity_1, velocity_2, first / below, second / below])


def energy(state: np.ndarray) -> float:
    """Energy of a state in joules, which is conserved without friction; 0 when hanging at rest.

    Example:
        >>> energy(np.zeros(4))
        0.0
    """
    angle_1, angle_2, velocity_1, velocity_2 = state.tolist()
    coupling = velocity_1 * velocity_2 * np.cos(angle_1 - angle_2)
    kinetic = velocity_1**2 + velocity_2**2 / 2 + coupling
    return float(kinetic + GRAVITY * (3 - 2 * np.cos(angle_1) - np.cos(angle_2)))
