"""Measures of edits, against shapes with known edges and the closed form of Gaussian seeds."""

import math

import pytest
import torch

from anisodiff.metrics.paired import diversity, edge_f1, edge_map, rms_distance


def square(side: int = 24, low: int = 7, high: int = 17, shift: int = 0, height: float = 0.6) -> torch.Tensor:
    x = torch.full((1, 1, side, side), 0.2)
    x[..., low:high, low + shift : high + shift] += height
    return x


def test_edges_of_a_step_are_one_pixel_wide_and_beside_it():
    for turn in (False, True):
        x = torch.full((1, 3, 12, 12), 0.1)
        x[..., 5:] = 0.9
        found = edge_map(x.mT if turn else x)[0]
        found = found.mT if turn else found
        assert found.sum() == 12
        assert found[:, 5].all()  # of the two pixels beside the step the latter
    assert not edge_map(torch.full((1, 1, 8, 8), 0.5)).any()


def test_contrast_is_the_height_of_a_step():
    for height, counts in ((0.2, True), (0.11, True), (0.09, False)):
        assert edge_map(square(height=height), contrast=0.1).any() == counts


def test_a_square_has_its_outline():
    found = edge_map(square())[0]
    rows, columns = found.nonzero().unbind(1)
    off = torch.minimum(
        (rows - 7).abs().minimum((rows - 16).abs()), (columns - 7).abs().minimum((columns - 16).abs())
    )
    assert off.max() <= 1
    assert 32 <= int(found.sum()) <= 44  # 4·10 pixels, corners rounded


def test_f1_of_shifted_squares():
    """Equal: 1. A pixel aside: 1 within the tolerance, less without. Elsewhere, or nothing at all: 0."""
    one = square()
    assert float(edge_f1(one, one)[0]) == 1.0
    assert float(edge_f1(square(shift=1), one, tolerance=1)[0]) == 1.0
    assert 0.2 < float(edge_f1(square(shift=1), one, tolerance=0)[0]) < 0.7
    assert float(edge_f1(square(shift=2), one, tolerance=2)[0]) == 1.0
    assert float(edge_f1(torch.full_like(one, 0.3), one)[0]) == 0.0
    assert float(edge_f1(torch.full_like(one, 0.3), torch.full_like(one, 0.9))[0]) == 1.0


def test_half_of_the_edges():
    """A second step in the result halves the precision: F1 = 2·½·1/(3/2) = 2/3; the other way round the recall."""
    one = torch.full((1, 1, 32, 32), 0.1)
    one[..., 8:] = 0.5
    two = one.clone()
    two[..., 24:] = 0.9
    assert float(edge_f1(two, one)[0]) == pytest.approx(2 / 3)
    assert float(edge_f1(one, two)[0]) == pytest.approx(2 / 3)
    both = edge_f1(torch.cat([one, two]), torch.cat([one, one]))
    assert both.tolist() == pytest.approx([1, 2 / 3])


def test_diversity_of_gaussian_seeds():
    """E‖a − b‖/√n of independent N(m, s²) is 2s·Γ((n+1)/2)/(Γ(n/2)·√n); 6 seeds of 200 inputs, four errors."""
    inputs, n, s = 200, 3 * 4 * 4, 0.07
    mean = torch.rand(1, inputs, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(6, inputs, 3, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    exact = 2 * s * math.exp(math.lgamma((n + 1) / 2) - math.lgamma(n / 2)) / n**0.5
    error = exact / (2 * n) ** 0.5 / (3 * inputs) ** 0.5  # 6 seeds: 3 pairs at least are independent
    assert diversity(mean + s * noise) == pytest.approx(exact, abs=4 * error)
    assert diversity(mean.expand(3, *mean.shape[1:])) == 0.0
    largest = diversity(mean + s * noise, lambda x, y: (x - y).abs().amax((1, 2, 3)))
    assert largest > diversity(mean + s * noise, rms_distance)


def test_mistakes():
    x = square()
    for call, words in (
        (lambda: edge_map(x[0]), r"got \[1, 24, 24\]"),
        (lambda: edge_map(x, contrast=0), "contrast: got 0"),
        (lambda: edge_f1(x, x[..., 1:]), "expected equal shapes"),
        (lambda: edge_f1(x, x, tolerance=-1), "tolerance: got -1"),
        (lambda: diversity(x[None]), "two seeds or more"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
