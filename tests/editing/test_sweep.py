"""Choosing a strength: what is measured, what is picked, what is drawn."""

import math

import pytest
import torch

import anisodiff
from anisodiff.editing import Unrest, elbow, strokes, sweep
from anisodiff.editing.figure import comparison_figure, sweep_figure
from anisodiff.editing.sweep import default_strengths, psnr
from anisodiff.io.figures import save_figure

from .conftest import EXACT


def test_faithfulness_falls_with_strength(exact):
    """On Gaussian images the RMSE is known in closed form; 40 draws of 64 modes: 8 % is four standard errors."""
    painting = exact.images(1, seed=2).float()
    found = sweep(exact.generator, painting, seeds=range(40), steps=4, sampler=EXACT, realism=lambda x: 0.0)
    assert found.strengths == tuple(sorted(found.strengths))
    assert found.results.shape == (8, 1, 40, 1, 8, 8)
    assert list(found.rmse) == sorted(found.rmse)
    assert list(found.times) == sorted(found.times)
    last, x = exact.pull(0.01), exact.modes(painting)[0, 0]
    for t, rmse in zip(found.times, found.rmse):
        pull = exact.pull(t)
        variance = exact.power * (pull * (1 - pull) + last - pull)
        expected = (variance + ((1 - pull) * x).square()).mean().sqrt()
        assert rmse == pytest.approx(float(expected), rel=0.08)


def test_unrest_is_nothing_for_the_models_own_images(exact):
    """200 draws of the law: the mean change of ln error is zero within four standard errors at every level."""
    own = exact.images(200, seed=4).float()
    unrest = Unrest(exact.generator, steps=4, sampler=EXACT)
    changes = unrest.changes(own)
    error = changes.std(0) / math.sqrt(len(own))
    assert (changes.mean(0).abs() < 4 * error + 2e-3).all()
    rough = (own + 0.03 * torch.randn(own.shape, generator=torch.Generator().manual_seed(0))).clamp(0, 1)
    flat = torch.stack([strokes(image, 3) for image in own])
    assert unrest(own) < 0.02
    assert unrest(rough) > 0.1
    assert unrest(flat) > 0.03
    assert unrest.changes(rough).mean() > 0  # harder to denoise than what comes back


def test_realism_returns_with_strength(exact_ve):
    noise = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    rough = (exact_ve.images(6, seed=4) + 0.04 * noise).clamp(0, 1).float()
    found = sweep(exact_ve.generator, rough, seeds=range(8), steps=4, sampler=EXACT, strengths=(0.8, 0.1, 0.4))
    assert found.strengths == (0.1, 0.4, 0.8)
    assert found.painting > 4 * found.realism[-1]
    assert found.realism[0] > found.realism[1]
    assert found.label.startswith("unrest")


def test_the_elbow_is_where_nine_tenths_are_gained():
    assert elbow([0.9, 0.5, 0.12, 0.1, 0.05], painting=1.0) == 2
    assert elbow([0.9, 0.5, 0.2, 0.09, 0.0], painting=1.0) == 3
    assert elbow([0.3, 0.2, 0.1], painting=0.05) == 2  # nothing to gain: the best there is
    assert elbow([0.1, 0.1], painting=0.1) == 0
    assert psnr(0.1) == pytest.approx(20.0)
    assert psnr(0.0) is None


def test_a_realism_of_ones_own_sees_every_result(runs, pictures, tmp_path):
    generator = anisodiff.load(runs("heat"), "cpu")
    seen = []

    class Contrast:
        label = "contrast"

        def __call__(self, images):
            seen.append(images.shape)
            return float(images.std())

    mask = torch.zeros(8, 8)
    mask[2:6, 2:6] = 1.0
    ticks = []
    found = sweep(
        generator, pictures[:2], seeds=[5, 6, 7], strengths=(0.3, 0.6), steps=5, realism=Contrast(), mask=mask,
        progress=lambda done, total: ticks.append((done, total)),
    )  # fmt: skip
    assert seen == [(6, 1, 8, 8), (6, 1, 8, 8), (2, 1, 8, 8)]
    assert ticks[-1] == (12, 12)
    kept = found.results.reshape(4, 3, 1, 8, 8)[..., mask < 0.5]
    assert torch.equal(kept, pictures[:2].repeat(2, 1, 1, 1)[:, None, ..., mask < 0.5].expand_as(kept))
    inside = (found.results[0] - pictures[:2, None])[..., mask > 0.5]
    assert found.rmse[0] == pytest.approx(float(inside.double().square().mean().sqrt()), rel=1e-5)
    facts = found.as_dict()
    assert facts["measure"] == "contrast"
    assert [point["strength"] for point in facts["points"]] == [0.3, 0.6]
    assert facts["elbow"]["t"] in found.times
    save_figure(sweep_figure(found, "told"), tmp_path / "s.png")
    assert (tmp_path / "s.png").stat().st_size > 10_000


def test_default_strengths_are_within_reach(runs):
    for name in ("ve", "heat", "anisotropic"):
        generator = anisodiff.load(runs(name), "cpu")
        chosen = default_strengths(generator)
        assert len(chosen) == 8
        assert list(chosen) == sorted(set(chosen))
        sweep(generator, torch.full((1, 1, 8, 8), 0.5), seeds=[0], strengths=chosen[::7], steps=12, realism=len)


def test_mistakes_are_named(runs, pictures):
    generator = anisodiff.load(runs("heat"), "cpu")
    with pytest.raises(ValueError, match="strengths: got none"):
        sweep(generator, pictures, seeds=[0], strengths=())
    with pytest.raises(ValueError, match=r"strength: got 0\.999"):
        sweep(generator, pictures, seeds=[0], strengths=(0.3, 0.999))
    with pytest.raises(ValueError, match="expected 2 in each"):
        comparison_figure([[pictures[0]]], ["a", "b"])
