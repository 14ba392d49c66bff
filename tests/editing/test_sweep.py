"""A sweep over strengths: what is measured, what is drawn."""

import pytest
import torch
from PIL import Image

import anisodiff
from anisodiff.editing import sweep
from anisodiff.editing.figures import comparison_figure, sweep_figure
from anisodiff.editing.sweep import default_strengths, psnr
from anisodiff.io.figures import caption, save_figure
from tests.editing.conftest import EXACT


def test_faithfulness_falls_with_strength(exact):
    """On Gaussian images the RMSE is known in closed form; 40 draws of 64 modes: 8% is four standard errors."""
    painting = exact.images(1, seed=2).float()
    found = sweep(exact.generator, painting, seeds=range(40), steps=4, sampler=EXACT)
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


def test_psnr():
    assert psnr(0.1) == pytest.approx(20.0)
    assert psnr(0.0) is None


def test_a_mask_limits_what_is_measured(runs, pictures, tmp_path):
    generator = anisodiff.load(runs("heat"), "cpu")
    mask = torch.zeros(8, 8)
    mask[2:6, 2:6] = 1.0
    ticks = []
    found = sweep(
        generator, pictures[:2], seeds=[5, 6, 7], strengths=(0.6, 0.3), steps=5, mask=mask,
        progress=lambda done, total: ticks.append((done, total)),
    )  # fmt: skip
    assert found.strengths == (0.3, 0.6)
    assert ticks[-1] == (12, 12)
    kept = found.results.reshape(4, 3, 1, 8, 8)[..., mask < 0.5]
    assert torch.equal(kept, pictures[:2].repeat(2, 1, 1, 1)[:, None, ..., mask < 0.5].expand_as(kept))
    inside = (found.results[0] - pictures[:2, None])[..., mask > 0.5]
    assert found.rmse[0] == pytest.approx(float(inside.double().square().mean().sqrt()), rel=1e-5)
    points = found.as_dict()["points"]
    assert [point["strength"] for point in points] == [0.3, 0.6]
    assert [point["noise_level"] for point in points] == pytest.approx([0.3 / 0.7, 0.6 / 0.4])
    save_figure(sweep_figure(found, "a note"), tmp_path / "s.png")
    width, height = Image.open(tmp_path / "s.png").size
    assert width == int((3 * 1.78 + 0.08) * 160)  # the painting and two strengths, 1.7 inches each
    assert height > 2 * 1.7 * 160  # two paintings


def test_a_long_note_is_wrapped_and_numbers_have_four_digits(runs, pictures):
    words = caption(anisodiff.load(runs("ve"), "cpu").process)
    assert "geometric(0.02918, 145.9)" in words
    figure = comparison_figure([[pictures[0], pictures[1]]], ["a", "b"], [f"{words}; {words}"])
    assert " ".join(text.get_text() for text in figure.texts).split() == f"{words}; {words}".split()
    for text in figure.texts:
        box, page = text.get_window_extent(), figure.bbox
        assert page.x0 <= box.x0 < box.x1 <= page.x1
        assert page.y0 <= box.y0 < box.y1 <= page.y1


def test_default_strengths_are_within_the_range(runs):
    for name in ("ve", "heat", "anisotropic"):
        generator = anisodiff.load(runs(name), "cpu")
        chosen = default_strengths(generator)
        assert len(chosen) == 8
        assert list(chosen) == sorted(set(chosen))
        sweep(generator, torch.full((1, 1, 8, 8), 0.5), seeds=[0], strengths=chosen[::7], steps=12)


def test_mistakes_are_named(runs, pictures):
    generator = anisodiff.load(runs("heat"), "cpu")
    with pytest.raises(ValueError, match="strengths: got none"):
        sweep(generator, pictures, seeds=[0], strengths=())
    with pytest.raises(ValueError, match=r"strength: got 0\.999"):
        sweep(generator, pictures, seeds=[0], strengths=(0.3, 0.999))
    with pytest.raises(ValueError, match="expected 2 in each"):
        comparison_figure([[pictures[0]]], ["a", "b"])
