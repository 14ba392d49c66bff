"""Measured tables against the exact ones of the same law."""

import pytest
import torch

import anisodiff
from anisodiff.objectives import objective_for
from anisodiff.objectives.phases import step_phases, table_phases
from anisodiff.tables import measure
from anisodiff.transforms import frequencies, idct2
from tests.oracles import gaussian_images

LAW = {"diffusivity": "geometric(0.1, 2)", "intensity": "geometric(0.03, 140)"}


@pytest.fixture(scope="module")
def tables():
    """Of one linear process on Gaussian images: exact, and measured in one window."""
    z = frequencies(8, 8, torch.float64, torch.device("cpu"))
    noise = torch.randn(1500, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    images = (0.5 + idct2(noise * (0.3 / (0.05 + z)))).float()
    exact = anisodiff.process("heat", 8, **LAW)
    window = anisodiff.process("heat", 8, step="exponential(windows=1)", **LAW)
    return measure(objective_for(exact), images), measure(objective_for(window), images)


def rows(moments, name, t):
    when = torch.tensor([t], dtype=torch.float64)
    return moments.at(getattr(moments, name), *moments.locate(when))[0]


@pytest.mark.parametrize("t", [0.05, 0.3, 0.7, 1.0, 1.3])
def test_one_long_window_is_resolved(tables, t):
    """Noise, signal and target of the whole kernel, from t_min to T, by forty places in one cell."""
    exact, measured = tables
    assert measured.log_noise.shape[:2] == (1, 40)
    noise, signal = rows(exact, "log_noise", t), rows(exact, "log_signal", t)
    assert (rows(measured, "log_noise", t) - noise).abs().mean() < 0.025
    assert (rows(measured, "log_target", t) - rows(exact, "log_target", t)).abs().mean() < 0.025
    seen = (signal - noise).exp() > 0.01
    assert (rows(measured, "log_signal", t) - signal)[seen].abs().mean() < 0.08


def test_signals_far_below_the_noise_are_seen(tables):
    """At a hundredth to a thousandth of the noise, where two runs of 1500 images cannot tell them from zero."""
    exact, measured = tables
    noise, signal = rows(exact, "log_noise", 0.95), rows(exact, "log_signal", 0.95)
    ratio = (signal - noise).exp()
    weak = (ratio > 2e-3) & (ratio < 1e-2)
    assert weak.sum() > 10
    error = (rows(measured, "log_signal", 0.95) - signal)[weak]
    assert error.median().abs() < 0.2
    assert (error.abs() < 0.7).float().mean() > 0.8


@pytest.mark.parametrize("cells", [1, 2, 3, 5, 7, 8, 10, 40])
def test_phases_rise_to_the_end_of_a_cell(cells):
    phases = table_phases(cells)
    assert (phases.diff() > 0).all()
    assert phases[-1] == 1
    assert phases[0] * 10 <= 0.4
    assert len(phases) * cells >= 36


@pytest.mark.parametrize(("dt", "cells"), [(0.01, 20), (0.05, 20), (0.03, 17), (0.5, 2)])
def test_single_steps_are_measured_at_their_ends(dt, cells):
    """Tables of the one-step objective stand at the times that are learned, whatever Δt."""
    objective = objective_for(anisodiff.process("anisotropic-paper", 8, step=f"tamed(dt={dt})"))
    edges = torch.tensor(objective.edges, dtype=torch.float64)
    assert len(edges) == cells + 1
    t = (edges[:-2, None] + objective.phases * edges.diff()[:-1, None]).flatten()  # the last cell may be shorter
    assert (objective.settle(t) - t).abs().max() < 1e-9
    assert step_phases(1).tolist() == [1.0]


def test_noise_that_cannot_be_told_from_the_images_is_refused():
    objective = objective_for(anisodiff.process("anisotropic", 16, intensity="geometric(1e-6, 2)"))
    with pytest.raises(ValueError, match="set a larger intensity"):
        measure(objective, gaussian_images(200, 16).float())
