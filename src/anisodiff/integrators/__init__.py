"""Discretisation in time: tamed Euler–Maruyama and the frozen-operator exponential step."""

from anisodiff.integrators.contract import Frozen, LocalKernel, TimeStep
from anisodiff.integrators.exponential import Exponential
from anisodiff.integrators.tamed_euler import TamedEuler

__all__ = ["Exponential", "Frozen", "LocalKernel", "TamedEuler", "TimeStep"]
