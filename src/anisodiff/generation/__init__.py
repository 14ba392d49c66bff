"""Images from a checkpoint: load, start, sample, write."""

from anisodiff.generation.generator import Generator
from anisodiff.generation.job import Outcome, write_samples
from anisodiff.generation.loading import load
from anisodiff.generation.protocol import read_protocol
from anisodiff.generation.running import Step
from anisodiff.generation.seeds import parse_seeds
from anisodiff.generation.starts import PRIORS

__all__ = ["PRIORS", "Generator", "Outcome", "Step", "load", "parse_seeds", "read_protocol", "write_samples"]
