"""Discretization in time: tamed Euler–Maruyama, the frozen-operator exponential step, and `signal`."""

from anisodiff.integrators.base import Frozen, LocalKernel, TimeStep, node_of, node_times
from anisodiff.integrators.exponential import Exponential
from anisodiff.integrators.signal import Signal
from anisodiff.integrators.tamed_euler import TamedEuler

__all__ = ["Exponential", "Frozen", "LocalKernel", "Signal", "TamedEuler", "TimeStep", "node_of", "node_times"]
