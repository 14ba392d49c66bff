"""Inception score (Salimans et al. 2016): does a classifier see clear classes, and many of them?

    IS = exp( E_x KL( p(y|x) ‖ p(y) ) ),   p(y) = E_x p(y|x)

in [1, number of classes]. The published scores use the 1008-way head of the 2015-12-05 network. With any
other classifier the number is another number: reports label it by the classifier's name.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anisodiff.metrics.frechet import require_features


@dataclass(frozen=True, kw_only=True)
class InceptionScore:
    """Mean over splits, and the standard deviation between splits (as published, not a standard error)."""

    value: float
    deviation: float
    splits: int


def inception_score(logits: Tensor, *, generator: torch.Generator | None = None, splits: int = 10) -> InceptionScore:
    """Logits ``[N,K]`` → IS over ``splits`` parts of equal size; shuffled where a generator is given."""
    logits = require_features(logits, "logits")
    if not 1 <= splits <= len(logits):
        raise ValueError(f"splits must be between 1 and the {len(logits)} images, got {splits}")
    if logits.shape[1] < 2:
        raise ValueError(f"the Inception score needs at least 2 classes, got {logits.shape[1]}")
    if generator is not None:
        logits = logits[torch.randperm(len(logits), generator=generator).to(logits.device)]
    size = len(logits) // splits
    scores = []
    for part in torch.split(logits[: size * splits], size):
        log_p = part.double().log_softmax(dim=1)
        p = log_p.exp()
        log_marginal = p.mean(dim=0).clamp_min(torch.finfo(torch.float64).tiny).log()
        scores.append((p * (log_p - log_marginal)).sum(dim=1).mean().exp())
    values = torch.stack(scores)
    deviation = float(values.std()) if splits > 1 else 0.0
    return InceptionScore(value=float(values.mean()), deviation=deviation, splits=splits)
