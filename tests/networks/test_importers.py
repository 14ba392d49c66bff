"""Published checkpoints: a file in exactly their layout gives the published function."""

import hashlib
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import anisodiff
from anisodiff.dct import dct2, idct2
from anisodiff.models.score import ScoreModel
from anisodiff.models.song_network import SongNetwork
from anisodiff.networks import NCSNpp, NCSNppConfig, VEScore, load_score_sde, ncsnpp_config
from anisodiff.networks.published import tensor_names
from anisodiff.statistics import SpectralStatistics
from tests.support.published_ncsnpp import forward, layout, published_file

TINY = NCSNppConfig(image_size=8, nf=8, multipliers=(1, 2), blocks=1, attention=(4,))
CONFIGS = {
    "cifar10": replace(TINY, multipliers=(1, 2, 2), blocks=2, image_size=16, attention=(8,)),
    "lsun256": replace(TINY, progressive="output_skip", progressive_input="input_skip", multipliers=(1, 1, 2)),
    "residual": replace(TINY, progressive="residual", multipliers=(1, 2, 1)),
    "cat": replace(TINY, progressive_input="input_skip", combine="cat", multipliers=(1, 2, 2)),
    "box": replace(TINY, fir=False, progressive="residual"),
    "box-skip": replace(TINY, fir=False, progressive="output_skip", progressive_input="input_skip"),
    "ddpm": replace(TINY, block="ddpm", progressive_input="none"),
    "ddpm-box": replace(TINY, block="ddpm", fir=False, progressive="residual", skip_rescale=False),
    "positional": replace(TINY, embedding="positional", in_channels=1, out_channels=2, progressive_input="none"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_imported_network_is_the_published_function(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    raw, averaged = published_file(tmp_path / "checkpoint.pth", config)
    g = torch.Generator().manual_seed(1)
    # not square, and not the nominal size: attention stays on its level
    x = torch.randn(2, config.in_channels, 8, 16, generator=g, dtype=torch.float64)
    cond = torch.tensor([0.3, -2.0], dtype=torch.float64)
    outputs = []
    for weights, state in (("ema", averaged), ("model", raw)):
        network, info = load_score_sde(tmp_path / "checkpoint.pth", config, weights=weights)
        assert info.step == 1234
        assert info.weights == weights
        assert info.unused == ("module.sigmas",)
        assert info.parameters == sum(v.numel() for v in averaged.values()) - 10 - (
            config.nf if config.embedding == "fourier" else 0
        )
        network.double()
        with torch.no_grad():
            out = network(x, cond)
            expected = forward(state, config, x, cond)
        assert expected.std() > 0.05
        torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
        outputs.append(out)
    assert (outputs[0] - outputs[1]).abs().max() > 0.1


# number, and sha256 of the lines "name shape", of the parameters of score_sde_pytorch's models/ncsnpp.py
PUBLISHED = {
    "cifar10": (571, "54b2476571b91ae00b3313e8981aad6bb9f2e19301677ea6321b76d0c5cc73ef"),
    "cifar10-deep": (963, "750e1df730d034cbb35b8c396108ed69b968c2f00e566f56a0d3726c797fdd65"),
    "celeba64": (571, "6a5758505125cecbfa5bf14cf7dfa3f02508bbb2168b5990e994d59c4bd8a843"),
    "lsun256": (645, "8d8a310a6527b7bf681e250cb245448c1e5119ff0fc9127c71db665a72d03e3c"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_names_and_shapes_are_those_of_the_published_class(name: str) -> None:
    """The layout these tests write files in, and the names the reader asks for, against the class itself."""
    config = ncsnpp_config(name)
    shapes = layout(config)
    lines = "\n".join(f"{key} {list(shape)}" for key, shape in shapes.items())
    assert (len(shapes), hashlib.sha256(lines.encode()).hexdigest()) == PUBLISHED[name]
    with torch.device("meta"):
        network = NCSNpp(config)
    assert [published for published, _ in tensor_names(network)] == list(shapes)
    if name == "lsun256":
        assert "module.all_modules.7.Conv_0.weight" in shapes  # how the first `Combine` is called in the files


def test_published_score(tmp_path: Path) -> None:
    """s(x, σ) = F(2x − 1, ln σ)/σ on images in [0,1]."""
    config = CONFIGS["cifar10"]
    _, averaged = published_file(tmp_path / "c.pth", config)
    network, _ = load_score_sde(tmp_path / "c.pth", config)
    x = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    sigma = torch.tensor([0.02, 7.0], dtype=torch.float64)
    with torch.no_grad():
        score = VEScore(network.double())(x, sigma)
        expected = forward(averaged, config, 2 * x - 1, sigma.log()) / sigma.reshape(2, 1, 1, 1)
    torch.testing.assert_close(score, expected, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        dropped = VEScore(network)(x, sigma, torch.tensor([1, 2]))
    assert (dropped - score).abs().max() > 1e-3  # keys turn the dropout on


@pytest.mark.parametrize("name", CONFIGS)
def test_more_outputs_leave_the_published_ones_as_they_were(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    published_file(tmp_path / "c.pth", config)
    wide = replace(config, out_channels=2 * config.out_channels)
    x = torch.randn(2, config.in_channels, 16, 8, generator=torch.Generator().manual_seed(1))
    cond = torch.tensor([0.3, -2.0])
    old, first = load_score_sde(tmp_path / "c.pth", config)
    new, second = load_score_sde(tmp_path / "c.pth", wide)
    assert (first.outputs_added, second.outputs_added) == (0, config.out_channels)
    assert new.config == wide
    out = new(x, cond)
    torch.testing.assert_close(out[:, : config.out_channels], old(x, cond))
    assert out[:, config.out_channels :].abs().max() == 0
    out[:, config.out_channels :].sum().backward()  # zero, but not dead
    moved = [name for name, p in new.named_parameters() if p.grad is not None and p.grad.abs().max() > 0]
    assert moved
    assert all(".conv." in name for name in moved)
    with pytest.raises(ValueError, match=r"got shape \[.*expected \["):
        load_score_sde(tmp_path / "c.pth", replace(config, out_channels=config.out_channels + 1))


def ve_model(folder: Path, process: anisodiff.Process, channels: int) -> tuple[ScoreModel, dict, SpectralStatistics]:
    """A published network in the model of a process, in float64, and the tensors it was made of."""
    config = CONFIGS["cifar10"]
    _, averaged = published_file(folder / "c.pth", config)
    network, _ = load_score_sde(folder / "c.pth", replace(config, out_channels=channels))
    g = torch.Generator().manual_seed(3)
    images = 0.5 + 0.2 * torch.randn(24, 3, 1, 1, generator=g) + 0.1 * torch.rand(24, 3, 16, 16, generator=g)
    objective = process
    statistics = objective.estimate_statistics(images)
    tables = {f: getattr(statistics, f).double() for f in SpectralStatistics.__dataclass_fields__}
    model = ScoreModel(network.double(), process.equation, SpectralStatistics(**tables), drift=objective.learns_drift)
    model.network = SongNetwork(model.network, model.statistics, model.conditions())
    return model, averaged, statistics


def test_a_published_network_in_our_model_has_the_published_score(tmp_path: Path) -> None:
    """s(u, t) = F(2u − 1, ln σ)/σ at the process `ve`, σ² = σ(t)² − σ_min²: at the times the tables are made for.

    Between them the model's own tables interpolate the noise, and the network is told the interpolated one.
    """
    model, averaged, statistics = ve_model(tmp_path, anisodiff.process("ve", 16), 3)
    cells = torch.tensor([0, 7, 20, 30, 39])
    at = statistics.edges[cells] + statistics.phases[[0, 3, 5, 2, 5]] * statistics.edges.diff()[cells]
    between = torch.tensor([0.1234, 0.777, 1.9], dtype=torch.float64)
    for t, noise in (
        (at, (0.01 * 5000 ** (at / 2)).square() - 0.01**2),
        (between, statistics.at(statistics.log_noise, *statistics.locate(between))[:, 0, 0].double().exp()),
    ):
        sigma = noise.sqrt()
        g = torch.Generator().manual_seed(5)
        u = 0.5 + sigma[:, None, None, None] * torch.randn(len(t), 3, 16, 16, generator=g, dtype=torch.float64)
        with torch.no_grad():
            score, other = model(u, t)
            expected = forward(averaged, CONFIGS["cifar10"], 2 * u - 1, sigma.log()) / sigma[:, None, None, None]
        assert torch.equal(score, other)
        gap = (score - expected).square().mean((1, 2, 3)).sqrt() / expected.square().mean((1, 2, 3)).sqrt()
        assert (gap < 1e-5).all()


class Wiener(torch.nn.Module):
    """The published network of Gaussian data: −σ(v − μ)/(D + σ²) per frequency, and a second output of its own."""

    def __init__(self, statistics: SpectralStatistics) -> None:
        super().__init__()
        self.statistics = statistics

    def forward(
        self, x: torch.Tensor, log_sigma: torch.Tensor, labels: object = None, dropout_key: object = None
    ) -> torch.Tensor:
        sigma = log_sigma.exp()[:, None, None, None]
        z = dct2((x + 1) / 2 - self.statistics.mean.double()[:, None, None])
        return torch.cat([idct2(-sigma * z / (self.statistics.data.double() + sigma**2)), torch.ones_like(x)], 1)


@pytest.mark.parametrize("name", ["heat", "anisotropic"])
def test_under_other_processes_what_is_known_is_taken_over(name: str, tmp_path: Path) -> None:
    """Who knows no more than Wiener's predictor of one process knows no more of another; the drift's is untouched."""
    process = anisodiff.process(name, 16, diffusivity="geometric(0.1, 2)")
    model, _, statistics = ve_model(tmp_path, process, 6)
    t = torch.tensor([0.15, 0.9, 1.9], dtype=torch.float64)
    g = torch.Generator().manual_seed(6)
    u = process.draw(torch.rand(3, 3, 16, 16, generator=g, dtype=torch.float64), t, g)
    with torch.no_grad():
        score, tilde = model(u, t)
        assert score.isfinite().all()
        assert torch.equal(score, tilde)  # the second output begins with 0
        model.network.network = Wiener(statistics)
        f, drift = model.residuals(model.to_coordinates(u), model.coefficients(t))
    assert f.abs().max() < 1e-6
    if name == "anisotropic":
        torch.testing.assert_close(idct2(drift), torch.ones_like(u))


def test_plain_list_of_averages(tmp_path: Path) -> None:
    published_file(tmp_path / "a.pth", TINY)
    content = torch.load(tmp_path / "a.pth", weights_only=True)
    content["ema"] = content["ema"]["shadow_params"]
    torch.save(content, tmp_path / "b.pth")
    first, _ = load_score_sde(tmp_path / "a.pth", TINY)
    second, _ = load_score_sde(tmp_path / "b.pth", TINY)
    assert all(torch.equal(v, second.state_dict()[k]) for k, v in first.state_dict().items())


def test_imported_network_can_be_trained(tmp_path: Path) -> None:
    published_file(tmp_path / "c.pth", TINY)
    network, _ = load_score_sde(tmp_path / "c.pth", TINY)
    network(torch.randn(1, 3, 8, 8), torch.zeros(1)).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


def test_wrong_files_are_refused_with_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "c.pth"
    published_file(path, TINY)
    with pytest.raises(ValueError, match=r"tensors are missing, the first 'module.all_modules.\d+"):
        load_score_sde(path, replace(TINY, blocks=2))
    with pytest.raises(ValueError, match=r"all_modules.*got shape \[8.*expected \[16"):
        load_score_sde(path, replace(TINY, nf=16))
    content = torch.load(path, weights_only=True)
    more = {**content["model"], "module.all_modules.99.weight": torch.zeros(3)}
    torch.save({**content, "model": more}, path)
    with pytest.raises(ValueError, match=r"got 1 more tensors than this configuration has.*\.99\.weight"):
        load_score_sde(path, TINY)
    short = {**content["ema"], "shadow_params": content["ema"]["shadow_params"][:-1]}
    torch.save({**content, "ema": short}, path)
    with pytest.raises(ValueError, match=r"ema: got \d+ tensors, expected \d+"):
        load_score_sde(path, TINY)
    load_score_sde(path, TINY, weights="model")
    shadow = content["ema"]["shadow_params"]
    for broken, said in (
        ([*shadow[:-1], 0.5], "got a float, expected a tensor"),
        ([*shadow[:-1], shadow[-1] * math.nan], "holds values that are not finite"),
    ):
        torch.save({**content, "ema": {**content["ema"], "shadow_params": broken}}, path)
        with pytest.raises(ValueError, match=rf"module.all_modules.\d+.*{said}"):
            load_score_sde(path, TINY)
    torch.save({**content, "step": None}, path)
    with pytest.raises(ValueError, match="step: got None, expected a whole number"):
        load_score_sde(path, TINY)
    torch.save({"weights": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match=r"got \['weights'\], expected a dict with model"):
        load_score_sde(path, TINY)
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match="cannot be read as a file of tensors only") as told:
        load_score_sde(path, TINY)
    assert "weights_only" not in str(told.value)  # torch advises to switch the check off: not in our name


class _Payload:
    ran = False

    def __reduce__(self):
        return (setattr, (_Payload, "ran", True))


def test_code_in_a_file_does_not_run(tmp_path: Path) -> None:
    path = tmp_path / "evil.pth"
    torch.save({"model": {}, "ema": [], "step": _Payload()}, path)
    with pytest.raises(ValueError, match="cannot be read as a file of tensors only"):
        load_score_sde(path, TINY)
    assert not _Payload.ran
