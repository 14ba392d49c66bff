"""The Wiener filter in the score: a network that predicts nothing leaves exactly it, wherever it is applied."""

import pytest
import torch

from anisodiff.dct import frequencies
from anisodiff.processes import TrainingPair
from tests.support.oracles import F64, Nothing, gaussian_images
from tests.support.score_models import build

CASES = {
    "ve": ("ve", {}),
    "heat": ("heat", {}),
    "one window": ("anisotropic", {"diffusivity": "geometric(0.1, 1)", "step": "exponential(windows=1)"}),
}


@pytest.fixture(params=CASES)
def model(request):
    name, overrides = CASES[request.param]
    found = build(name, gaussian_images(64, 8), **overrides)[-1].double()
    found.network = Nothing()
    return found


def states(model, count: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    t = torch.tensor([0.7], dtype=F64)
    return torch.randn(count, 1, 8, 8, dtype=F64, generator=torch.Generator().manual_seed(1)), t


def test_the_score_is_the_wiener_filter(model):
    z, t = states(model)
    c = model.coefficients(t)
    power = c.signal + c.noise
    torch.testing.assert_close(model.score(z, t), -z / power, rtol=1e-12, atol=0)
    u = model.from_coordinates(z)
    score = model.modes(model(u, t.expand(3))[0])
    torch.testing.assert_close(score, -z / power, rtol=1e-9, atol=1e-12)


def test_the_denoised_image_is_that_of_the_wiener_filter(model):
    """E[x0 | u] = S/V û, with the linear smoothing undone."""
    z, t = states(model)
    c = model.coefficients(t)
    want = c.signal / c.power * z / c.kept.clamp(0.05, 1.0).sqrt()
    torch.testing.assert_close(model.to_coordinates(model.denoised(z, t)), want, rtol=1e-6, atol=1e-9)


def test_a_target_that_is_the_wiener_filter_has_no_loss(model):
    z, t = states(model)
    c, many = model.coefficients(t.expand(3)), t.expand(3)
    rate = c.alpha1 * c.weight * frequencies(z.shape[-2], z.shape[-1], z.dtype, z.device)
    drift = model.field(-rate * z) if model.learns_drift else None
    pair = TrainingPair(model.from_coordinates(z), model.field(-z / c.power), drift)
    assert float(model.loss(pair, many).abs().max()) < 1e-18
    off = TrainingPair(pair.state, 0.9 * pair.target, drift)
    assert float(model.loss(off, many).min()) > 1e-6
