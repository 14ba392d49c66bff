"""Going forth and back: seeds, masks, and the exact law of the results where the data are Gaussian."""

import pytest
import torch

import anisodiff
from anisodiff.dct import idct2
from anisodiff.editing import edit, restore, t_of_strength
from tests.editing.conftest import EXACT, F64, SIZE
from tests.generation.test_generator import TOLERANCE, shake

LEFT = torch.zeros(SIZE, SIZE)
LEFT[:, : SIZE // 2] = 1.0


@pytest.mark.parametrize("process", ["ve", "heat", "anisotropic"])
def test_hardly_forth_is_hardly_changed(runs, pictures, process):
    generator = anisodiff.load(runs(process), "cpu")
    near = edit(generator, pictures, t=0.021, seeds=range(8), steps=3)
    far = edit(generator, pictures, t=1.2, seeds=range(8), steps=14)
    assert (near - pictures).abs().max() < 0.04
    assert (far - pictures).abs().max() > 0.12


def test_a_candidate_depends_on_its_seed_alone(runs, pictures):
    generator = anisodiff.load(runs("anisotropic"), "cpu")
    shake(generator)
    options = {"strength": 0.6, "steps": 14, "repeats": 2, "mask": LEFT}
    one = pictures[:1].expand(5, -1, -1, -1)
    together = edit(generator, one, seeds=range(3, 8), **options)
    assert together.shape == (5, 1, 8, 8)
    assert together.dtype == torch.float32
    shuffled = edit(generator, one, seeds=[7, 4, 3, 6, 5], batch=2, **options)
    torch.testing.assert_close(shuffled[[2, 1, 4, 3, 0]], together, rtol=0, atol=TOLERANCE)
    alone = edit(generator, one[:1], seeds=[5], **options)
    torch.testing.assert_close(alone[0], together[2], rtol=0, atol=TOLERANCE)
    among = edit(generator, pictures[[4, 0, 2]], seeds=[9, 5, 9], **options)
    torch.testing.assert_close(among[1], together[2], rtol=0, atol=TOLERANCE)
    assert (together[0] - together[1]).abs().max() > 0.02


@pytest.mark.parametrize(("process", "sampler"), [("heat", "ancestral"), ("anisotropic", "exponential")])
def test_a_mask_keeps_the_rest_to_the_last_bit(runs, pictures, process, sampler):
    generator = anisodiff.load(runs(process), "cpu")
    shake(generator)
    made = edit(generator, pictures, seeds=range(8), strength=0.6, steps=14, sampler=sampler, mask=LEFT, repeats=2)
    keep = LEFT < 0.5
    assert torch.equal(made[..., keep], pictures[..., keep])
    assert ((made - pictures)[..., ~keep].abs().amax((1, 2)) > 0.02).all()
    masks = torch.zeros(8, 1, 8, 8)
    masks[:, :, 2:5, 3:6] = 1.0
    masks[3] = 1.0 - masks[3]
    made = edit(generator, pictures, seeds=range(8), strength=0.6, steps=12, sampler=sampler, mask=masks)
    assert torch.equal(made[masks < 0.5], pictures[masks < 0.5])
    assert ((made != pictures) & (masks > 0.5)).sum() > 0.9 * (masks > 0.5).sum()
    back = restore(generator, pictures, seeds=range(8), strength=0.3, steps=12, sampler=sampler, mask=LEFT)
    assert torch.equal(back[..., keep], pictures[..., keep])
    assert not torch.equal(back, pictures)


@pytest.mark.parametrize("strength", [0.3, 0.7])
def test_results_have_the_law_that_gaussian_data_imply(exact, strength):
    """x' = μ + (S/V)(x − μ) on average: the stronger, the more is pulled to the data. Exact but for the tables.

    Its variance is that of the noise let through, B²D²N/V², and of what is invented, DN/V, less what E[x0|u] at t_min
    averages away. 3000 draws: 64 means within 4.5 standard errors, the mean ratio of variances within 2%.
    """
    generator, count = exact.generator, 3000
    x = exact.images(1, seed=3)
    t = t_of_strength(generator.model, strength, t_min=0.01)
    options = {"seeds": range(count), "steps": 4, "sampler": EXACT, "batch": count}
    made = exact.modes(edit(generator, x.expand(count, -1, -1, -1), t=t, **options))
    (signal, noise), pull, last = exact.kernel(t), exact.pull(t), exact.pull(0.01)
    variance = exact.power * (pull * (1 - pull) + (1 - pull) - (1 - last))
    expected = pull * exact.modes(x)[0, 0]
    assert (((made.mean(0)[0] - expected) / (variance / count).sqrt()).abs() < 4.5).all()
    assert (made.var(0)[0] / variance).mean() == pytest.approx(1.0, abs=0.02)
    assert float((signal / (signal + noise)).min()) < 0.75  # something was invented

    twice = exact.modes(edit(generator, x.expand(count, -1, -1, -1), t=t, repeats=2, **options))
    both = variance * (1 + pull**2)  # independent noise in each repeat
    assert (((twice.mean(0)[0] - pull * expected) / (both / count).sqrt()).abs() < 4.5).all()
    assert (twice.var(0)[0] / both).mean() == pytest.approx(1.0, abs=0.02)


def test_restoring_reaches_the_wiener_bound(exact):
    """A draw given the state has twice the error of the best estimate, the mean of M draws 1 + 1/M of it.

    `ve` adds noise, `heat` blurs as well. 300 images, 64 modes: 1% is one standard error of the ratios.
    """
    generator, images, draws = exact.generator, exact.images(300, seed=5), 8
    t = t_of_strength(generator.model, 0.5)
    states = generator.process.simulate(images, t, torch.Generator().manual_seed(0))
    rows = states.repeat_interleave(draws, 0)
    made = restore(generator, rows, seeds=range(len(rows)), t=t, steps=4, sampler=EXACT, batch=len(rows)).to(F64)
    best = float((exact.power * (1 - exact.pull(t))).mean())
    single = float((made[::draws] - images).square().mean())
    mean = float((made.reshape(300, draws, 1, SIZE, SIZE).mean(1) - images).square().mean())
    given = float((states - images).square().mean())
    assert given > 1.5 * mean
    assert single == pytest.approx(2 * best, rel=0.04)
    assert mean == pytest.approx((1 + 1 / draws) * best, rel=0.04)


def test_what_is_invented_fits_to_what_is_kept(exact_ve):
    """One half is hidden under gray. What the other half says of it, E[x_in | x_out], is known; 1 is all of it."""
    basis = idct2(torch.eye(64, dtype=F64).reshape(64, SIZE, SIZE)).flatten(1)
    covariance = basis.mT * exact_ve.power.flatten() @ basis
    inside = LEFT.flatten() > 0.5
    count = 200
    images = exact_ve.images(count, seed=8)
    rest = (images.flatten(1) - exact_ve.mean)[:, ~inside]
    gain = torch.linalg.solve(covariance[~inside][:, ~inside], covariance[~inside][:, inside])
    wanted = rest @ gain
    hidden = torch.where(LEFT > 0.5, torch.full_like(images, exact_ve.mean), images)
    options = {"seeds": range(count), "strength": 0.8, "steps": 16, "sampler": EXACT, "batch": count}
    held = edit(exact_ve.generator, hidden, mask=LEFT, **options)
    again = edit(exact_ve.generator, hidden, mask=LEFT, repeats=8, **{**options, "strength": 0.6})
    pasted = torch.where(LEFT > 0.5, edit(exact_ve.generator, hidden, **options), hidden)

    def agreement(made: torch.Tensor) -> float:
        found = (made.to(F64).flatten(1) - exact_ve.mean)[:, inside]
        return float((found * wanted).sum() / wanted.square().sum())

    assert 0.35 < agreement(held) < agreement(again) < 1.0  # near the law, not the law; repeats come nearer
    assert agreement(again) > 0.6
    assert abs(agreement(pasted)) < 0.2


@pytest.mark.parametrize("call", [edit, restore])
def test_a_model_may_be_given_by_its_path(call, runs, pictures):
    run, how = runs("heat"), {"t": 1.0, "seeds": 0, "steps": 4}
    expected = call(anisodiff.load(run), pictures[:2], **how)
    for path in (run, str(run)):
        assert torch.equal(call(path, pictures[:2], **how), expected)
    with pytest.raises(ValueError, match=r"^no such folder: nowhere"):
        call("nowhere", pictures[:2], **how)


def test_mistakes_are_named(runs, pictures):
    generator = anisodiff.load(runs("heat"), "cpu")
    two = {"seeds": [0, 1], "steps": 4}
    pair = pictures[:2]
    mistakes = [
        (lambda: edit(generator, pair, t=0.0, **two), "t: got 0, expected a time"),
        (lambda: edit(generator, pair, t=2.5, **two), "t: got 2.5, expected a time"),
        (lambda: edit(generator, pair, strength=1.5, **two), "strength: got 1.5"),
        (lambda: edit(generator, "photo.png", **two), "images: got str, expected a tensor"),
        (lambda: edit(generator, pair[0], **two), r"got \[1, 8, 8\], expected a batch \[B, 1, 8, 8\]"),
        (lambda: edit(generator, pair, t=1.0, strength=0.5, **two), "expected one of them"),
        (lambda: edit(generator, pair, t=1.0, seeds=[], steps=4), "0 seeds"),
        (lambda: edit(generator, pair, t=1.0, seeds=[0], steps=4), "one for every seed"),
        (lambda: edit(generator, pair[..., :7], t=1.0, **two), r"expected \[2, 1, 8, 8\]"),
        (lambda: edit(generator, 255 * pair, t=1.0, **two), "divide bytes by 255"),
        (lambda: edit(generator, pair / 0, t=1.0, **two), "NaN or infinite"),
        (lambda: edit(generator, pair, t=1.0, repeats=0, **two), "repeats: got 0"),
        (lambda: edit(generator, pair, t=1.0, batch=0, **two), "batch: got 0"),
        (lambda: edit(generator, pair, t=1.0, mask=torch.zeros(8, 8), **two), "keeps every pixel"),
        (lambda: edit(generator, pair, t=1.0, mask=torch.ones(7, 8), **two), "mask: got"),
        (lambda: edit(generator, pair, t=1.0, sampler="eulre", **two), "did you mean 'euler'"),
        (lambda: edit(generator, pair, t=1.0, seeds=[0, 1], steps=0), "steps: got 0"),
        (lambda: restore(generator, pair, t=0.001, **two), "t: got 0.001"),
        (lambda: restore(generator, pair, seeds=[1], t=1.0), "one for every seed"),
    ]
    for call, says in mistakes:
        with pytest.raises(ValueError, match=says) as caught:
            call()
        assert "\n" not in str(caught.value)
