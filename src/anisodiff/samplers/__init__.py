"""Samplers of the reverse process, one module each (by name: `registry`)."""

from anisodiff.samplers.base import Sampler, SampleResult

__all__ = ["SampleResult", "Sampler"]
