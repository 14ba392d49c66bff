"""Stein's balance: what leans is measured and taken out, and a sampler that lost power keeps it."""

import torch
from tests.oracles import Leaning

from anisodiff.dct import dct2, idct2
from anisodiff.estimation import measure
from anisodiff.models.conditional import measure_conditional
from anisodiff.models.velocity import VelocityModel
from anisodiff.networks.balance import Balance, Measuring, rings
from anisodiff.noise import KeyedNoise
from anisodiff.objectives import Exact
from anisodiff.processes.presets import process
from anisodiff.samplers import sampler

F64 = torch.float64
SIZE = 8


def test_rings_hold_every_frequency_and_the_constant_mode_alone():
    for height, width in ((8, 8), (32, 32), (16, 24), (1, 5)):
        ring = rings(height, width)
        assert ring.shape == (height, width)
        assert int((ring == 0).sum()) == 1
        assert int(ring[0, 0]) == 0
        assert int(ring.max()) < max(height, width, 2)
        apart = rings(height, width, 3)
        assert torch.equal(apart[0], ring)
        assert set(apart[1].unique().tolist()).isdisjoint([*apart[0].unique().tolist(), *apart[2].unique().tolist()])
        assert torch.equal(apart[2] - apart[2].min(), ring)
    square = rings(32, 32)
    assert torch.equal(square, square.mT)
    assert int(square[31, 31]) == int(square.max())


def test_what_is_left_does_not_lean():
    gen = torch.Generator().manual_seed(0)
    w, g = (torch.randn(400, 3, SIZE, SIZE, generator=gen, dtype=F64) for _ in range(2))
    ring = rings(SIZE, SIZE)
    kappa = torch.linspace(-0.4, 0.3, int(ring.max()) + 1, dtype=F64)
    f = kappa[ring] * w + torch.randn(w.shape, generator=gen, dtype=F64)
    measuring = Measuring(ring)
    t = torch.tensor([0.5], dtype=F64)
    score, drift = measuring(w, t, f, 0.1 * w + g)
    error = 1 / (1200 * torch.bincount(ring.flatten())).sqrt()
    found, other = measuring.found[0.5]
    assert ((found - kappa).abs() < 4.5 * error).all()
    assert ((other - 0.1).abs() < 4.5 * error + 0.1 * (other == 0)).all()  # what chance explains is left in
    for residual in (score, drift):
        lean = torch.zeros_like(kappa).index_add(0, ring.flatten(), (w * residual).mean((0, 1)).flatten())
        assert (lean.abs() / torch.bincount(ring.flatten()) < 2 * error).all()


def test_axes_that_lean_differently_are_measured_apart():
    """Also with the opposite sign, which together would be no lean at all."""
    gen = torch.Generator().manual_seed(4)
    w, noise = (torch.randn(300, 2, SIZE, SIZE, generator=gen, dtype=F64) for _ in range(2))
    f = torch.tensor([0.4, -0.4], dtype=F64)[:, None, None] * w + 0.1 * noise
    left = {}
    for name, ring in {"together": rings(SIZE, SIZE), "apart": rings(SIZE, SIZE, 2)}.items():
        measuring = Measuring(ring)
        for time in (0.25, 0.5):
            score, _ = measuring(w, torch.tensor([time], dtype=F64), f, None)
        balance = Balance.of(measuring.balance().tensors())
        again, _ = balance(w, torch.tensor([0.3], dtype=F64), f, None)
        torch.testing.assert_close(again, score, atol=1e-6, rtol=0)
        left[name] = (w * score).mean((0, 2, 3)).abs().max()
    assert float(left["together"]) > 0.3
    assert float(left["apart"]) < 0.01


def test_one_that_was_measured_for_all_channels_still_works():
    ring = rings(SIZE, SIZE)
    kappa = torch.linspace(-0.4, 0.3, int(ring.max()) + 1).expand(2, -1)
    times, size = torch.tensor([0.1, 0.5], dtype=F64), torch.tensor([SIZE, SIZE])
    balance = Balance.of({"times": times, "score": kappa, "drift": kappa, "size": size})
    w = torch.randn(4, 3, SIZE, SIZE)
    score, _ = balance(w, times[:1], torch.zeros_like(w), None)
    torch.testing.assert_close(score, -kappa[0][ring] * w)


def test_noise_alone_is_hardly_taken_for_a_lean():
    gen = torch.Generator().manual_seed(1)
    w, f = (torch.randn(200, 3, SIZE, SIZE, generator=gen, dtype=F64) for _ in range(2))
    measuring = Measuring(rings(SIZE, SIZE))
    measuring(w, torch.zeros(1, dtype=F64), f, None)
    found, _ = measuring.found[0.0]
    assert float((found == 0).double().mean()) > 0.5
    assert float(found.abs().max()) < 0.1


def test_tables_are_linear_between_times_and_constant_outside():
    ring = rings(SIZE, SIZE)
    score = torch.randn(3, int(ring.max()) + 1)
    balance = Balance(torch.tensor([0.1, 0.5, 1.0], dtype=F64), score, torch.zeros_like(score), ring)
    t = torch.tensor([0.05, 0.1, 0.2, 0.5, 2.0], dtype=F64)
    expected = torch.stack([score[0], score[0], 0.75 * score[0] + 0.25 * score[1], score[1], score[2]])
    torch.testing.assert_close(balance.at(score, t)[:, 0], expected[:, ring])
    again = Balance.of(balance.tensors())
    for name in ("times", "score", "drift", "ring"):
        assert torch.equal(getattr(again, name), getattr(balance, name))


def _generated(kappa: float, count: int, *, balanced: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Power of images generated from Gaussian data by `ve`, and the data's, by ring."""
    gen = torch.Generator().manual_seed(2)
    chosen = process("ve", SIZE)
    spectrum = 1 / (1 + torch.arange(SIZE)[:, None] ** 2 + torch.arange(SIZE) ** 2)
    images = 0.5 + idct2(0.3 * spectrum.sqrt() * torch.randn(4000, 1, SIZE, SIZE, generator=gen))
    model = Leaning(torch.nn.Identity(), chosen.equation, measure(Exact(chosen), images), drift=False)
    model.kappa = kappa
    route = sampler("exponential", chosen)
    times = route.times(model, 40, t_min=0.02)
    start = 50.0 * torch.randn(count, 1, SIZE, SIZE, generator=gen) + 0.5
    measuring = Measuring(rings(SIZE, SIZE))
    if balanced:
        model.balance = measuring
        route.run(model, start, times, KeyedNoise(torch.arange(count)))
        model.balance = measuring.balance()
    made = route.run(model, start.flip(0), times, KeyedNoise(torch.arange(count) + count))
    ring = rings(SIZE, SIZE).flatten()

    def power(x):
        field = dct2(x - model.moments_mean[:, None, None]).square().mean((0, 1)).flatten()
        return torch.zeros(int(ring.max()) + 1).index_add(0, ring, field)

    return power(made), power(images)


def test_a_balance_brings_lost_power_back():
    lost, data = _generated(-0.15, 1500, balanced=False)
    kept, _ = _generated(-0.15, 1500, balanced=True)
    assert ((lost / data)[1:] < 0.9).all()
    assert ((kept / data - 1).abs()[1:] < 0.12).all()  # 1500 samples: 4 % a ring, and Wiener's own error at 40 steps
    assert float((kept / data).mean()) > float((lost / data).mean()) + 0.1


class Velocity(VelocityModel):
    """Of Gaussian images: the exact velocity is linear; ``kappa`` is what it leans besides."""

    kappa = 0.0

    def exact(self, z, t):
        power, growth = self._spectrum(t.to(z.dtype)[:, None, None, None])
        mean = self.centred(self.moments_mean)[:, None, None]
        state = dct2(z - (1 - t).to(z.dtype)[:, None, None, None] * mean)
        return idct2((0.5 * growth / power + self.kappa / power.sqrt()) * state) - mean


def _flow(kappa: float, count: int, *, balanced: bool) -> torch.Tensor:
    """Power of images generated by flow matching relative to the data's, by ring."""
    gen = torch.Generator().manual_seed(3)
    spectrum = 1 / (1 + torch.arange(SIZE)[:, None] ** 2 + torch.arange(SIZE) ** 2)
    images = 0.3 + idct2(spectrum.sqrt() * torch.randn(4000, 1, SIZE, SIZE, generator=gen))
    chosen = process("flow-matching", SIZE)
    model = Velocity(torch.nn.Identity(), chosen, measure_conditional(chosen, images))
    model.kappa = kappa
    model.network = type("Answer", (torch.nn.Module,), {"forward": lambda _, z, t, key: model.exact(z, t.double())})()
    route = sampler("heun", chosen)
    times = route.times(model, 40, t_min=1e-5)
    start = 0.5 + 0.5 * torch.randn(count, 1, SIZE, SIZE, generator=gen)
    if balanced:
        model.balance = measuring = Measuring(rings(SIZE, SIZE))
        route.run(model, start, times, KeyedNoise(torch.arange(count)))
        model.balance = measuring.balance()
    made = route.run(model, start.flip(0), times, KeyedNoise(torch.arange(count)))
    ring = rings(SIZE, SIZE).flatten()
    assert abs(float(made.mean()) - float(images.mean())) < 0.02
    fields = [dct2(x - model.moments_mean[:, None, None]).square().mean((0, 1)).flatten() for x in (made, images)]
    one, other = (torch.zeros(int(ring.max()) + 1).index_add(0, ring, field) for field in fields)
    return one / other


def test_a_velocity_has_a_balance_too():
    exact, lost = (_flow(kappa, 1500, balanced=False) for kappa in (0.0, 0.4))
    kept = _flow(0.4, 1500, balanced=True)
    assert ((exact - 1).abs() < 0.12).all()
    assert (lost[1:] < 0.8).all()
    assert ((kept - 1).abs() < 0.15).all()
