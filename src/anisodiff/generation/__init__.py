"""Images from a checkpoint: load, sample, write; and from Python, train."""

from anisodiff.generation.config import SamplingConfig
from anisodiff.generation.generator import Generator, as_generator, load
from anisodiff.generation.images import Images
from anisodiff.generation.job import SamplingOutcome, write_samples
from anisodiff.generation.priors import PRIORS
from anisodiff.generation.protocol import read_protocol
from anisodiff.generation.reverse import SamplingStep, parse_seeds
from anisodiff.generation.runs import train
from anisodiff.models.guidance import Guidance

__all__ = [
    "PRIORS", "Generator", "Guidance", "Images", "SamplingConfig", "SamplingOutcome", "SamplingStep",
    "as_generator", "load", "parse_seeds", "read_protocol", "train", "write_samples",
]  # fmt: skip
