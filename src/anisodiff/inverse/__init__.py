"""Linear inverse problems y = A x + σ n: operators, and models that are given a measurement."""

from anisodiff.inverse.covariance import SpectralCovariance
from anisodiff.inverse.guidance import (
    METHODS,
    Measurement,
    Method,
    check_model,
    check_noise,
    condition_on_measurement,
)  # fmt: skip
from anisodiff.inverse.operators import OPERATORS, LinearOperator, read_operator

__all__ = [
    "METHODS", "OPERATORS", "LinearOperator", "Measurement", "Method", "SpectralCovariance", "check_model",
    "check_noise", "condition_on_measurement", "read_operator",
]  # fmt: skip
