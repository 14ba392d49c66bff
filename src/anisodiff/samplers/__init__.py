"""Samplers of the reverse process (by name: `registry`)."""

from anisodiff.samplers.ancestral import Ancestral
from anisodiff.samplers.base import OwnTimes, Sampler, SampleResult
from anisodiff.samplers.churn import Churn
from anisodiff.samplers.deblurring import Deblurring
from anisodiff.samplers.dopri5 import Dopri5
from anisodiff.samplers.euler import Euler
from anisodiff.samplers.exponential import Exponential
from anisodiff.samplers.flow import Heun, Midpoint
from anisodiff.samplers.multistep import Multistep
from anisodiff.samplers.ode import Ode
from anisodiff.samplers.posterior import Posterior
from anisodiff.samplers.predictor_corrector import PredictorCorrector

__all__ = [
    "Ancestral",
    "Churn",
    "Deblurring",
    "Dopri5",
    "Euler",
    "Exponential",
    "Heun",
    "Midpoint",
    "Multistep",
    "Ode",
    "OwnTimes",
    "Posterior",
    "PredictorCorrector",
    "SampleResult",
    "Sampler",
]
