"""The forward processes of the baselines: each one's closed forms (what every process must do: test_processes.py)."""

import json

import numpy as np
import pytest
import torch
from scipy import fft, ndimage

import anisodiff
from anisodiff.noise import KeyedNoise, combine
from anisodiff.processes.conditional import levels_of
from anisodiff.registry import build_sampler
from tests.processes.test_processes import TABLE, image, rows
from tests.support.oracles import F64, at, generator

every_baseline = rows([*TABLE, ("flow-matching", {"sigma_min": 0.1})])


PUBLISHED = {
    ("flow-matching", 32): {"sigma_min": 0.0, "density": "skewed"},
    ("flow-matching-uniform", 32): {"sigma_min": 0.0, "density": "uniform"},
    ("heat-dissipation", 32): {"levels": 200, "blur_min": 0.5, "blur_max": 24.0, "noise": 0.01},
    ("heat-dissipation", 64): {"levels": 200, "blur_min": 0.5, "blur_max": 32.0, "noise": 0.01},
    ("heat-dissipation", 256): {"levels": 400, "blur_min": 0.5, "blur_max": 64.0, "noise": 0.01},
    ("edge-preserving", 32): {
        "levels": 750, "beta_min": 1e-4, "beta_max": 0.02, "lambda_min": 1e-4, "lambda_max": 0.1, "transition": 0.5,
        "boundary": "zeros",
    },
}  # fmt: skip
SAMPLED = {
    "ve": "pc(snr=0.16, sigma_min=0.01, norms=batch)", "flow-matching": "heun(grid=level, rho=7)",
    "flow-matching-uniform": "dopri5(tolerance=1e-05)", "heat-dissipation": "deblurring(delta=0.0125)",
    "edge-preserving": "posterior(clip=False)",
}  # fmt: skip
"""What the papers, or their public code, name; see docs/baselines.md."""


def kind_of(name: str) -> str:
    """Both recipes of flow matching are one process."""
    return name.removesuffix("-uniform")


@pytest.mark.parametrize(("name", "size"), PUBLISHED)
def test_the_published_numbers_are_the_usual_ones(name, size):
    assert anisodiff.process(name, size).identity() == {"kind": kind_of(name), **PUBLISHED[name, size]}


@pytest.mark.parametrize("name", SAMPLED)
def test_samplers_have_the_published_numbers(name):
    process = anisodiff.process(name, 32)
    assert build_sampler(SAMPLED[name].partition("(")[0], process) == build_sampler(SAMPLED[name], process)


def test_every_level_is_drawn_equally_often():
    times = (torch.arange(1000, dtype=F64) + 0.5) / 1000
    found, counts = levels_of(times, 5).unique(return_counts=True)
    assert found.tolist() == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert counts.tolist() == [200] * 5
    on = torch.arange(1, 201, dtype=F64) / 200
    assert torch.equal(levels_of(on, 200), on)  # a level stays where it is, whatever rounding does


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_flow_matching_begins_with_its_smallest_noise(dtype):
    """The image itself where σ_min = 0 (a shared test); else noise of σ_min/2 is left at t = 0."""
    x0 = image(3, 3, 5, 8, dtype=dtype)
    u = anisodiff.process("flow-matching", 8, sigma_min=0.1).draw(x0, torch.tensor([0.0, 0.37, 1.0]), generator())
    assert 0.1 * 0.05 < float((u[0] - x0[0]).abs().max()) < 6 * 0.05


@every_baseline
def test_a_state_depends_on_its_own_key(name, overrides):
    process, keys = anisodiff.process(name, 8, **overrides), combine(1, torch.arange(5))
    x0, t = image(5, 2, 6, 6), torch.linspace(0.1, 1, 5)
    together = process.draw(x0, t, KeyedNoise(keys))
    for k in (0, 3):
        alone = process.draw(x0[k : k + 1], t[k : k + 1], KeyedNoise(keys[k : k + 1]))
        torch.testing.assert_close(together[k : k + 1], alone, rtol=0, atol=1e-6)
    assert not torch.allclose(together, process.draw(x0, t, KeyedNoise(keys + 1)))


@every_baseline
def test_identity_is_plain_and_rebuilds_the_process(name, overrides):
    process = anisodiff.process(name, 8, **overrides)
    identity = json.loads(json.dumps(process.identity()))
    kind = identity.pop("kind")
    assert kind == kind_of(name)
    assert anisodiff.process(kind, 100, **identity) == process
    assert all(anisodiff.process(kind, 8, **{k: v}).identity()[k] == v for k, v in identity.items() if k != "levels")


@every_baseline
def test_images_that_are_not_finite_are_refused(name, overrides):
    x0 = image(2, 1, 4, 4)
    x0[0, 0, 1, 1] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        anisodiff.process(name, 8, **overrides).draw(x0, 0.5)


@pytest.mark.parametrize(
    ("name", "overrides", "says"),
    [
        ("flow-machting", {}, "did you mean 'flow-matching'"),
        ("flow-matching", {"sigma": 0.1}, "did you mean 'sigma_min'"),
        ("flow-matching", {"sigma_min": 2}, "sigma_min: got 2, expected a number from 0 to 0.5"),
        ("flow-matching", {"diffusivity": 2}, "unknown key 'diffusivity'"),
        ("flow-matching", {"density": "skewd"}, "unknown density 'skewd'; did you mean 'skewed'"),
        ("flow-matching-uniform", {"density": "skewed"}, "unknown key 'density'"),
        ("heat-dissipation", {"levels": 2.5}, "levels: got 2.5, expected a whole number"),
        ("heat-dissipation", {"noise": "loud"}, "expected a number"),
        ("heat-dissipation", {"blur_max": 0.2}, "blur_min < blur_max"),
        ("edge-preserving", {"lambda_min": 0}, "lambda_min: got 0, expected a number from 1e-12"),
        ("edge-preserving", {"beta_max": 1e-5}, "must not fall"),
        ("edge-preserving", {"boundary": "replicat"}, "did you mean 'replicate'"),
        ("anisotropic", {"levels": 3}, "unknown key 'levels'"),
    ],
)
def test_mistakes_are_refused_by_naming_what_to_change(name, overrides, says):
    with pytest.raises(ValueError, match=says):
        anisodiff.process(name, 32, **overrides)
    with pytest.raises(ValueError, match="whole number"):
        anisodiff.process("heat-dissipation", 2)


@every_baseline
def test_powers_are_those_of_many_states(name, overrides):
    """S and N per mode against 400 states of each of eight images: 5 standard errors over all modes."""
    process, x0, t = anisodiff.process(name, 5, **overrides), image(8, 1, 5, 5, dtype=F64), at(0.4)
    signal, noise = process.powers(x0, t, x0.mean((0, 2, 3)))
    many = process.draw(x0.repeat(400, 1, 1, 1), 0.4, generator()).reshape(400, 8, 5, 5)
    modes = torch.from_numpy(fft.dctn(many.numpy(), axes=(-2, -1), norm="ortho"))
    found = modes.var(0).mean(0)
    torch.testing.assert_close(found, noise, rtol=5 * (2 / (400 * 8)) ** 0.5, atol=0)
    level = np.full((5, 5), float(process.mean(x0, t.expand(8)).mean()))
    means = modes.mean(0) - torch.from_numpy(fft.dctn(level, norm="ortho"))
    error = 5 * (noise / 400 / 8).sqrt() * 2 * signal.sqrt() + 5 * noise / 400
    assert ((means.square().mean(0) - signal).abs() < error).all()


def test_flow_matching_is_a_straight_line():
    """Along a path the state moves at the velocity of its end points, and ends in noise of width ½ about ½."""
    process = anisodiff.process("flow-matching", sigma_min=0.05)
    x0 = image(3, 2, 4, 4, dtype=F64)
    a, b, c = process.path(x0, [0.2, 0.5, 0.9], generator())
    torch.testing.assert_close((b - a) / 0.3, (c - b) / 0.4)
    xi = (a - process.mean(x0, at(0.2).expand(3))) / process.spread(x0, at(0.2).expand(3))
    torch.testing.assert_close((b - a) / 0.3, process.velocity(x0, xi))
    prior = anisodiff.process("flow-matching").prior(x0.float())
    draw = prior.draw(2000, generator())
    assert draw.mean().item() == pytest.approx(0.5, abs=5 * 0.5 / (2000 * 32) ** 0.5)
    assert draw.std().item() == pytest.approx(0.5, rel=5 / (2 * 2000 * 32) ** 0.5)


def test_heat_dissipation_is_the_closed_form_in_the_dct():
    """Against scipy's DCT: level 0 the image, level 1 width ½, the last 24; noise 0.01 at every level."""
    process = anisodiff.process("heat-dissipation", 32)
    assert process.identity() == {
        "kind": "heat-dissipation", "levels": 200, "blur_min": 0.5, "blur_max": 24.0, "noise": 0.01,
    }  # fmt: skip
    x0 = image(1, 1, 6, 9, dtype=F64)
    n1, n2 = np.pi * np.arange(6)[:, None] / 6, np.pi * np.arange(9) / 9
    widths = np.array([0.0, *np.exp(np.linspace(np.log(0.5), np.log(24), 200))])
    for k in (0, 1, 2, 100, 200):
        modes = fft.dctn(x0[0, 0].numpy(), norm="ortho") * np.exp(-(n1**2 + n2**2) * widths[k] ** 2 / 2)
        blurred = torch.from_numpy(fft.idctn(modes, norm="ortho"))
        torch.testing.assert_close(process.mean(x0, at(k / 200))[0, 0], blurred, rtol=0, atol=1e-13)
        assert float(process.spread(x0, at(k / 200))) == pytest.approx(0.01 if k else 0.0)
    sizes = {size: anisodiff.process("heat-dissipation", size) for size in (28, 64, 256)}
    assert [(p.blur_max, p.levels) for p in sizes.values()] == [(21.0, 200), (32.0, 200), (64.0, 400)]


@pytest.mark.parametrize("boundary", ["zeros", "replicate"])
def test_edge_preserving_noise_is_the_formula(boundary):
    """b_t by numpy and scipy's Sobel filter, for one image of two channels; then the variance of 4000 states."""
    process = anisodiff.process("edge-preserving", boundary=boundary)
    x0, k = image(1, 2, 6, 7, dtype=F64), 150
    gray = (2 * x0[0] - 1).sum(0).numpy()
    mode = {"zeros": "constant", "replicate": "nearest"}[boundary]
    square = sum(ndimage.sobel(gray, axis, mode=mode, cval=0.0) ** 2 for axis in (0, 1))
    edges = square / square.max()
    kept = np.prod(1 - np.linspace(1e-4, 0.02, 750)[:k])
    tau, lam = np.sin(np.pi * 0.2 / 2) ** 2, 1e-4 + (0.1 - 1e-4) * 0.4
    b = np.sqrt(1 - kept) / ((1 - tau) * np.sqrt(1 + edges / lam) + tau)
    found = process.spread(x0, at(0.2))
    torch.testing.assert_close(found[0, 0], torch.from_numpy(b / 2), rtol=1e-10, atol=0)
    assert float(found.max() / found.min()) > 2
    mean = process.mean(x0, at(0.2))
    torch.testing.assert_close(mean, 0.5 + kept**0.5 * (x0 - 0.5))
    gap = process.draw(x0.expand(4000, 2, 6, 7), 0.2, generator()) - mean
    torch.testing.assert_close(gap.square().mean((0, 1)), found[0, 0] ** 2, rtol=5 * (2 / 8000) ** 0.5, atol=0)


def test_edge_preserving_noise_without_edges_is_isotropic():
    """λ → ∞, t = 1, or an image without gradient: √(1 − ᾱ), that of Ho et al. 2020."""
    x0 = image(2, 3, 5, 5, dtype=F64)
    wide = anisodiff.process("edge-preserving", lambda_min=1e12, lambda_max=1e12)
    plain = anisodiff.process("edge-preserving", boundary="replicate")
    for process, images, t in ((wide, x0, 0.3), (plain, x0, 1.0), (plain, torch.full_like(x0, 0.3), 0.3)):
        when = at(t, t)
        isotropic = 0.5 * (1 - process.signal_power(when)).sqrt()[:, None, None, None].expand(2, 1, 5, 5)
        torch.testing.assert_close(process.spread(images, when), isotropic, rtol=1e-9, atol=0)
    assert float(plain.spread(x0, at(0.3, 0.3)).std()) > 0.01


def test_edge_preserving_noise_is_a_markov_chain():
    """b_t² − a²b_s² ≥ 0 for every pixel and every pair of levels."""
    process = anisodiff.process("edge-preserving")
    edges = torch.rand(1, 1, 8, 8, dtype=F64, generator=generator()) ** 4
    t = torch.arange(0, 751, 5, dtype=F64) / 750
    ratio = process.scale(edges.expand(len(t), 1, 8, 8), t).square() / process.signal_power(t)[:, None, None, None]
    assert (ratio.diff(dim=0) > 0).all()


@every_baseline
def test_a_process_with_levels_is_learned_at_its_levels(name, overrides):
    process, t = anisodiff.process(name, 8, **overrides), torch.linspace(1e-3, 1, 50, dtype=torch.float64)
    snapped = process.snap_to_grid(t)
    if "levels" in process.capabilities:
        level = snapped * process.levels
        torch.testing.assert_close(level, level.round(), rtol=0, atol=1e-9)
        assert ((snapped >= t - 1e-9) & (snapped < t + 1 / process.levels)).all()
    else:
        assert torch.equal(snapped, t)
