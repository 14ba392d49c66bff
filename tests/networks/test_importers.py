"""Published checkpoints: a file in exactly their layout gives the published function."""

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from published_ncsnpp import forward, layout

from anisodiff.networks import NCSNppConfig, VEScore, load_score_sde

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


def published_file(path: Path, config: NCSNppConfig, seed: int = 0) -> tuple[dict, dict]:
    """Write a checkpoint; returns the tensors of `model` and those that `ema` stands for, in float64."""
    g = torch.Generator().manual_seed(seed)

    def draw(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name == "module.all_modules.0.W":
            return torch.randn(shape, generator=g)
        fan = shape[0] if len(shape) < 2 else torch.Size(shape[1:]).numel()
        values = torch.randn(shape, generator=g) / fan**0.5
        return values + 1 if "GroupNorm" in name and name.endswith("weight") else values

    shapes = layout(config)
    model = OrderedDict({"module.sigmas": torch.linspace(50, 0.01, 10, dtype=torch.float64)})
    model.update({name: draw(name, shape) for name, shape in shapes.items()})
    trained = [name for name in shapes if config.embedding == "positional" or name != "module.all_modules.0.W"]
    shadow = [draw(name, shapes[name]) for name in trained]
    optimizer = {
        "state": {0: {"step": 3, "exp_avg": shadow[0].clone()}},
        "param_groups": [{"lr": 2e-4, "params": [0]}],
    }
    ema = {"decay": 0.999, "num_updates": 77, "shadow_params": shadow}
    torch.save({"optimizer": optimizer, "model": model, "ema": ema, "step": 1234}, path)
    raw = {name: value.double() for name, value in model.items()}
    return raw, raw | {name: value.double() for name, value in zip(trained, shadow)}


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
    torch.save({"weights": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match=r"got \['weights'\], expected a dict with model"):
        load_score_sde(path, TINY)
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match="cannot be read as a file of tensors only"):
        load_score_sde(path, TINY)


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
