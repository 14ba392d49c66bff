"""Metrics as layers of pure functions: images → features → statistics → values with their protocol."""

from anisodiff.metrics.backbones import dinov2, inception, onnx, torchscript
from anisodiff.metrics.bits import BitsSettings, bits_per_dimension
from anisodiff.metrics.cache import cached_statistics, load_statistics
from anisodiff.metrics.edges import edge_distance, edge_statistics
from anisodiff.metrics.evaluation import evaluate
from anisodiff.metrics.feature_metrics import inception_score, kernel_distance, prdc
from anisodiff.metrics.features import FeatureNetwork, function_network, no_network
from anisodiff.metrics.frechet import extrapolate, frechet_distance, gaussian_statistics
from anisodiff.metrics.images import ImageSet, image_set, read_batches
from anisodiff.metrics.lpips import LPIPS
from anisodiff.metrics.memorization import look_for_copies
from anisodiff.metrics.paired import diversity, edge_f1, paired_metrics, psnr
from anisodiff.metrics.pixel_metrics import sliced_wasserstein, spectrum_error, spectrum_statistics
from anisodiff.metrics.protocol import Generation, Protocol, Report, Settings, Value, comparison_table
from anisodiff.metrics.references import Reference, open_reference
from anisodiff.metrics.resize import Preprocess
from anisodiff.metrics.samples import generated, read_samples
from anisodiff.metrics.statistics import Context, ImageStatistics, image_statistics
from anisodiff.metrics.values import METRICS

__all__ = [
    "LPIPS", "METRICS", "BitsSettings", "Context", "FeatureNetwork", "Generation", "ImageSet",
    "ImageStatistics", "Preprocess", "Protocol", "Reference", "Report", "Settings", "Value",
    "bits_per_dimension", "cached_statistics", "comparison_table", "dinov2", "diversity", "edge_distance",
    "edge_f1", "edge_statistics", "evaluate", "extrapolate", "frechet_distance", "function_network",
    "gaussian_statistics", "generated", "image_set", "image_statistics", "inception", "inception_score",
    "kernel_distance", "load_statistics", "look_for_copies", "no_network", "onnx", "open_reference",
    "paired_metrics", "prdc", "psnr", "read_batches", "read_samples", "sliced_wasserstein", "spectrum_error",
    "spectrum_statistics", "torchscript",
]  # fmt: skip
