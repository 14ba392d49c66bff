"""Images that live on a plane: a mixture of four Gaussians in two coordinates, a small network trained on the spot.

Every process and every kind of sampler must bring the samples as near to the data as stated, in the sliced
Wasserstein distance: 0.056 is the distance of the Gaussian with the data's mean and covariance, 0.008 that of two
draws of data.
"""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import anisodiff
from anisodiff.dct import idct2
from anisodiff.metrics.pixel_metrics import directions, sliced_wasserstein
from anisodiff.models.base import ModelOptions
from anisodiff.models.score import ScoreModel
from anisodiff.models.time_density import draw_times
from anisodiff.noise import KeyedNoise
from anisodiff.processes import Process, TrainingPair
from anisodiff.registry import build_sampler
from tests.support.oracles import keys

SIZE, DT = 4, 0.05
TAMED, WINDOWS = {"step": f"tamed(dt={DT})"}, {"step": "exponential(windows=5)"}
PROCESSES = {
    "ve": ("ve", {}),
    "heat": ("heat", {}),
    "anisotropic": ("anisotropic", WINDOWS),
    "signal": ("anisotropic", {"step": "signal(windows=5)", "correlation_length": 0.4}),
    "reverse_drift": ("anisotropic", WINDOWS),
    "reverse_drift of signal": ("anisotropic", {"step": "signal(windows=5)"}),
    "anisotropic-paper": ("anisotropic-paper", TAMED),
    "score": ("anisotropic-paper", {**TAMED, "diffusivity": "geometric(0.1, 1)"}),
    "anisotropic noise": ("anisotropic-paper", {**TAMED, "noise_anisotropy": 1.0}),
}
PROJECTED = "euler(drift=projected)"
LIMITS = {
    # process → sampler, NFE, distance below
    "ve": [
        ("exponential", 41, 0.025),
        ("ode", 41, 0.025),
        ("ancestral(grid=adapted)", 81, 0.025),
        ("euler(norm=none, corrector=0.1)", 101, 0.03),
    ],
    "heat": [("exponential", 41, 0.025), ("ode", 41, 0.025), ("euler", 101, 0.025)],
    "anisotropic": [("exponential", 41, 0.035), ("exponential(wiener=1)", 41, 0.035), (PROJECTED, 101, 0.04)],
    "signal": [("exponential", 41, 0.025)],
    "reverse_drift": [("exponential", 41, 0.035), (PROJECTED, 101, 0.04)],
    "reverse_drift of signal": [("exponential", 41, 0.025)],
    "anisotropic-paper": [("exponential", 41, 0.04), (PROJECTED, 101, 0.04)],
    "score": [("euler", 101, 0.03)],
    "anisotropic noise": [(PROJECTED, 101, 0.045)],
}


def mixture(count: int, seed: int) -> Tensor:
    """Two coordinates as the lowest modes of a 4×4 image, a third mode that follows from them, and a little noise."""
    g = torch.Generator().manual_seed(seed)
    centers = 0.6 * torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-0.2, -0.6]])
    y = centers[torch.randint(4, (count,), generator=g)] + 0.08 * torch.randn(count, 2, generator=g)
    modes = torch.zeros(count, 1, SIZE, SIZE)
    modes[:, 0, 0, 1], modes[:, 0, 1, 0], modes[:, 0, 1, 1] = y[:, 0], 0.7 * y[:, 1], 0.3 * y.prod(1)
    return 0.5 + idct2(modes) + 0.01 * torch.randn(count, 1, SIZE, SIZE, generator=g)


class Mlp(nn.Module):
    def __init__(self, outputs: int, width: int = 96) -> None:
        super().__init__()
        sizes = [SIZE * SIZE + 9, width, width, width]
        layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.SiLU())]
        self.layers = nn.Sequential(*layers, nn.Linear(width, outputs * SIZE * SIZE))

    def forward(self, x: Tensor, c: Tensor, dropout_key: Tensor | None = None) -> Tensor:
        waves = c[:, None] * torch.tensor([1.0, 3.0, 6.0, 12.0])
        features = torch.cat([x.flatten(1), 2 * c[:, None], waves.sin(), waves.cos()], 1)
        return self.layers(features).reshape(len(x), -1, SIZE, SIZE)


def trained(name: str) -> tuple[Process, ScoreModel]:
    """600 steps of 256 out of 16,384 draws, Adam with one cycle of its rate."""
    kind, overrides = PROCESSES[name]
    process = anisodiff.process(kind, SIZE, **overrides)
    pool, steps = 1 << 14, 600
    statistics = process.estimate_statistics(mixture(300, 1))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        learns = name.split()[0] if name.startswith(("reverse_drift", "score")) else "score_and_drift"
        network = Mlp(2 if process.learns_drift and learns == "score_and_drift" else 1)
    model = ScoreModel(
        network, process.equation, statistics, drift=process.learns_drift, options=ModelOptions(learns=learns)
    )
    noise = KeyedNoise(keys(pool, 5))
    times = draw_times(*model.time_density(mean=-0.5, std=1.4, t_min=DT), noise.uniform())
    t = process.snap_to_grid(times)
    drawn = process.training_pair(mixture(pool, 2), t, noise)
    optimizer = torch.optim.Adam(network.parameters(), lr=4e-3, betas=(0.9, 0.99), fused=True)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    g = torch.Generator().manual_seed(3)
    for _ in range(steps):
        k = torch.randint(pool, (256,), generator=g)
        part = TrainingPair(drawn.state[k], drawn.target[k], None if drawn.drift is None else drawn.drift[k])
        optimizer.zero_grad()
        model.loss(part, t[k]).mean().backward()
        optimizer.step()
        rate.step()
    return process, model.eval()


THETA = directions(SIZE * SIZE, 64, generator=torch.Generator().manual_seed(0))


def distance(images: Tensor) -> float:
    one, other = (x.flatten(1).double() @ THETA for x in (images, mixture(4000, 10)))
    return sliced_wasserstein(one, other)


@pytest.mark.parametrize("name", LIMITS)
def test_samples_are_near_to_the_data(name):
    """2000 samples from terminal states of other data; one training for all samplers of a process."""
    process, model = trained(name)
    start = process.draw(mixture(2000, 20), process.T, KeyedNoise(keys(2000, 6)))
    found = {}
    for text, nfe, _ in LIMITS[name]:
        chosen = build_sampler(text, process)
        times = chosen.times(model, nfe, t_min=DT)
        found[text] = distance(chosen.run(model, start, times, KeyedNoise(keys(2000, 7))).images)
    assert {text: found[text] for text, _, limit in LIMITS[name] if found[text] >= limit} == {}


def test_distance_separates_a_mixture_from_its_gaussian():
    x = mixture(4000, 12).flatten(1)
    g = torch.randn(2000, x.shape[1], generator=torch.Generator().manual_seed(0))
    gaussian = x.mean(0) + g @ torch.linalg.cholesky(torch.cov(x.mT)).mT
    assert distance(gaussian) > 0.05
    assert distance(mixture(2000, 11)) < 0.012
