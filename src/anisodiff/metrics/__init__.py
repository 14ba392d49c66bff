"""Metrics as layers of pure functions: images → features → statistics → value with its protocol."""

from anisodiff.metrics.backbones import dinov2, inception, onnx, torchscript
from anisodiff.metrics.curve import fid_figure
from anisodiff.metrics.edges import EdgeDistance, EdgeStatistics, edge_distance, edge_statistics
from anisodiff.metrics.evaluation import evaluate
from anisodiff.metrics.features import FeatureNetwork, extract, float32_arithmetic, function_network
from anisodiff.metrics.frechet import (
    Extrapolation,
    GaussianStatistics,
    extrapolate,
    frechet_distance,
    gaussian_statistics,
)
from anisodiff.metrics.generated import Model, generated
from anisodiff.metrics.images import ImageSet, Source, fingerprint, image_set, peek, walk
from anisodiff.metrics.inception_score import InceptionScore, inception_score
from anisodiff.metrics.kernel import KernelDistance, kernel_distance, kernel_mmd2
from anisodiff.metrics.memorization import (
    Gallery,
    Memorization,
    Recovery,
    Share,
    closer_to_training,
    look_for_copies,
    memorization,
    source_recovery,
)
from anisodiff.metrics.neighbors import Neighbors, nearest, nearest_pixels
from anisodiff.metrics.origin import Origin, find_sources, read_origin
from anisodiff.metrics.prdc import PRDC, prdc
from anisodiff.metrics.protocol import Comparison, Generation, Protocol, Report, Value, compare, comparison_table
from anisodiff.metrics.references import Reference, open_reference
from anisodiff.metrics.resize import Preprocess, bicubic, tf1_bilinear
from anisodiff.metrics.sheet import neighbor_sheet
from anisodiff.metrics.sliced import directions, project, sliced_wasserstein
from anisodiff.metrics.spectra import SpectrumStatistics, spectrum_error, spectrum_statistics
from anisodiff.metrics.statistics import cached_survey, is_statistics, load_statistics
from anisodiff.metrics.survey import Survey, survey
from anisodiff.metrics.values import METRICS, Settings
from anisodiff.metrics.weights import INCEPTION, PublishedWeights, find_weights, weights_hash
from anisodiff.metrics.workers import Workers, current_workers

__all__ = [
    "INCEPTION",
    "METRICS",
    "PRDC",
    "Comparison",
    "EdgeDistance",
    "EdgeStatistics",
    "Extrapolation",
    "FeatureNetwork",
    "Gallery",
    "GaussianStatistics",
    "Generation",
    "ImageSet",
    "InceptionScore",
    "KernelDistance",
    "Memorization",
    "Model",
    "Neighbors",
    "Origin",
    "Preprocess",
    "Protocol",
    "PublishedWeights",
    "Recovery",
    "Reference",
    "Report",
    "Settings",
    "Share",
    "Source",
    "SpectrumStatistics",
    "Survey",
    "Value",
    "Workers",
    "bicubic",
    "cached_survey",
    "closer_to_training",
    "compare",
    "comparison_table",
    "current_workers",
    "dinov2",
    "directions",
    "edge_distance",
    "edge_statistics",
    "evaluate",
    "extract",
    "extrapolate",
    "fid_figure",
    "find_sources",
    "find_weights",
    "fingerprint",
    "float32_arithmetic",
    "frechet_distance",
    "function_network",
    "gaussian_statistics",
    "generated",
    "image_set",
    "inception",
    "inception_score",
    "is_statistics",
    "kernel_distance",
    "kernel_mmd2",
    "load_statistics",
    "look_for_copies",
    "memorization",
    "nearest",
    "nearest_pixels",
    "neighbor_sheet",
    "onnx",
    "open_reference",
    "peek",
    "prdc",
    "project",
    "read_origin",
    "sliced_wasserstein",
    "source_recovery",
    "spectrum_error",
    "spectrum_statistics",
    "survey",
    "tf1_bilinear",
    "torchscript",
    "walk",
    "weights_hash",
]
