"""`solve`: draws from the exact posterior of Gaussian images; the command, what it writes and says."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import anisodiff
from anisodiff.dct import dct2, idct2
from anisodiff.editing.solving import degrade, solve, wiener
from anisodiff.inverse import read_operator
from tests.training.conftest import pixels

CPU = ["--device", "cpu"]
NOISE = 0.02


@pytest.mark.parametrize("text", ["super-resolution(factor=2)", "inpainting(hole=4)"])
def test_draws_have_the_mean_and_spread_of_the_exact_posterior(exact_ve, text):
    """64 draws of one measurement; every pixel within 4.5 standard errors (64 pixels, level below 1e-3)."""
    operator, count = read_operator(text), 64
    truth = exact_ve.images(1, seed=5)
    y = degrade(operator, truth, NOISE)
    found = solve(
        exact_ve.generator, y.expand(count, *y.shape[1:]), operator, noise=NOISE, seeds=0, steps=60,
        prior=exact_ve.generator.process.prior(exact_ve.images(256)),
    ).double()  # fmt: skip
    mean = wiener(exact_ve.generator, y, operator, NOISE)[0]
    units = torch.eye(64, dtype=torch.float64).reshape(64, 1, 8, 8)
    a = operator.apply(units).flatten(1).mT
    a = a[a.abs().sum(1) > 0]
    prior = idct2(exact_ve.power * dct2(units)).flatten(1)
    gain = prior @ a.mT @ torch.linalg.inv(a @ prior @ a.mT + NOISE**2 * torch.eye(len(a), dtype=torch.float64))
    variance = (prior - gain @ a @ prior).diagonal().reshape(8, 8)
    error = (found.mean(0)[0] - mean[0]) / (variance / count).sqrt()
    assert float(error.abs().max()) < 4.5
    ratio = found.var(0)[0].mean() / variance.mean()
    assert float(ratio) == pytest.approx(1, abs=0.25)


def test_without_a_measurement_it_is_the_sample_of_the_seed(runs):
    generator = anisodiff.load(runs("heat"), "cpu")
    y = torch.zeros(3, 1, 8, 8)
    for method in ("pigdm", "dps"):
        found = anisodiff.solve(generator, y, "deblurring", noise=math.inf, seeds=[4, 5, 9], steps=6, method=method)
        assert torch.equal(found, generator.sample_seeds([4, 5, 9], steps=6))


def test_a_result_depends_on_its_seed_alone(runs):
    generator = anisodiff.load(runs("heat"), "cpu")
    y = degrade(read_operator("super-resolution(factor=2)"), torch.rand(3, 1, 8, 8), 0.1)
    how = {"noise": 0.1, "steps": 6}
    together = anisodiff.solve(generator, y, "super-resolution(factor=2)", seeds=7, **how)
    alone = anisodiff.solve(generator, y[1:2], "super-resolution(factor=2)", seeds=8, **how)
    torch.testing.assert_close(together[1:2], alone, rtol=0, atol=1e-4)


def test_a_model_may_be_given_by_its_path(runs):
    y, how = torch.rand(2, 1, 8, 8), {"noise": 0.1, "seeds": 0, "steps": 12}
    found = [anisodiff.solve(model, y, "deblurring", **how) for model in (runs("heat"), anisodiff.load(runs("heat")))]
    assert torch.equal(*found)
    with pytest.raises(ValueError, match=r"^model: got dict, expected a path or a name, or what anisodiff\.load"):
        anisodiff.solve({}, y, "deblurring", **how)


def test_the_noise_of_a_measurement_belongs_to_its_picture():
    operator, images = read_operator("inpainting(hole=2)"), torch.rand(3, 1, 8, 8)
    y = degrade(operator, images, 0.3)
    assert torch.equal(degrade(operator, images[[2, 0]], 0.3), y[[2, 0]])
    assert torch.equal(degrade(operator, images, 0.0), operator.apply(images))
    assert not bool(y[..., 3:5, 3:5].any())  # nothing is measured in the hole
    assert float((y - operator.apply(images)).std()) == pytest.approx(0.3, abs=0.06)


def test_mistakes_in_python(runs):
    generator = anisodiff.load(runs("heat"), "cpu")
    for y, options, message in (
        (torch.zeros(2, 1, 8, 8), {"operator": "super-resolution(factor=2)"}, "expected .2, 1, 4, 4."),
        (torch.full((1, 1, 8, 8), math.nan), {"operator": "deblurring"}, "NaN"),
        (torch.zeros(1, 1, 8, 8), {"operator": "colorization"}, "expected 3"),
        (torch.zeros(1, 1, 8, 8), {"operator": "deblurring", "method": "dsp"}, "did you mean 'dps'"),
        (torch.zeros(1, 1, 8, 8), {"operator": "deblurring", "noise": -1}, "noise: got -1, expected .* from 0 to 10"),
        (torch.zeros(1, 1, 8, 8), {"operator": "deblurring", "noise": 20}, "noise: got 20, expected .* from 0 to 10"),
    ):
        with pytest.raises(ValueError, match=message):
            anisodiff.solve(generator, y, **{"noise": 0.1, "seeds": 0, "steps": 4, **options})


def save(name: str, picture: np.ndarray) -> str:
    Image.fromarray(picture).save(name)
    return name


def files(folder: str) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file())


def test_the_command_degrades_solves_measures_and_goes_on(command, refused, runs):
    save("a.png", pixels(3)[1, 0])
    save("b.png", pixels(3)[2, 0])
    words = ["--degrade", "--operator", "super-resolution(factor=2)", "--noise", 0.05, "--steps", 5, *CPU]
    code, out, err = command("solve", runs("heat"), "a.png", *words, "-n", 2, "--figure", "f.png")
    assert code == 0, err
    assert "super-resolution(factor=2), noise 0.05: pigdm; exponential, 5 NFE" in out
    assert "left out: lpips, which needs images of at least 31×31" in out
    assert "2 of 2 results made: 10 network evaluations" in out
    ways = [line.split("|")[1].strip() for line in out.splitlines() if line.startswith("|")]
    assert ways[2:] == ["plain", "wiener", "mean of 2", "solved"]
    assert "means over" not in out
    assert "- solved: mean over 2 candidates per image" in out
    assert out.splitlines()[-2:] == ["wrote solved", "wrote f.png"]
    results = ["solved/a-0000.png", "solved/a-0001.png"]
    shown = [f"{folder}/a.png" for folder in ("input", "mean", "measured", "plain", "wiener")]
    assert files("solved") == sorted(["solve.json", *results, *shown])
    assert Image.open("solved/measured/a.png").size == (4, 4)
    before = Path("solved/solved/a-0001.png").read_bytes()
    Path("solved/solved/a-0000.png").write_bytes(b"cut")
    code, out, _ = command("solve", runs("heat"), "a.png", "b.png", *words, "-n", 2, "--json")
    facts = json.loads(out)
    assert (code, facts["count"], facts["made"]) == (0, 4, 3)
    assert Path("solved/solved/a-0001.png").read_bytes() == before
    assert set(facts["scores"]) == {"plain", "wiener", "mean of 2", "solved"}
    assert facts["scores"]["mean of 2"]["psnr"] >= facts["scores"]["solved"]["psnr"]
    _, out, _ = command("solve", runs("heat"), "a.png", "b.png", *words)
    assert "- means over 2 images" in out
    assert "candidates per image" not in out
    refused("solve", runs("heat"), "a.png", *words, "--method", "dps", says="solved holds other solutions: method")


def test_a_measurement_of_the_user_and_a_mask(command, runs):
    save("small.png", pixels(3)[1, 0][::2, ::2])
    code, out, err = command(
        "solve", runs("heat"), "small.png", "--operator", "super-resolution(2)", "--steps", 4, *CPU
    )
    assert code == 0, err
    assert "resized" not in out
    assert files("solved") == ["measured/small.png", "plain/small.png", "solve.json", "solved/small-0000.png", "wiener/small.png"]  # noqa: E501  # fmt: skip
    save("photo.png", pixels(3)[1, 0])
    words = ["photo.png", "--operator", "super-resolution(2)", "--steps", 2, *CPU]
    told = "photo.png: 8×8 pixels, resized to 4×4, the input of super-resolution(factor=2) for this model of 8×8"
    out = command("solve", runs("heat"), *words, "-o", "true")[1]
    assert f"{told}; with --degrade a true image is degraded first\n" in out
    hole = np.zeros((8, 8), np.uint8)
    hole[2:5, 3:6] = 255
    save("hole.png", hole)
    words = ["photo.png", "--operator", "inpainting", "--mask", "hole.png", "--noise", 0.01, "--steps", 8, *CPU]
    code, out, err = command("solve", runs("ve"), *words, "-o", "filled")
    assert code == 0, err
    assert "\ninpainting (mask: 9 of 64 pixels), noise 0.01: pigdm; " in f"\n{out}"
    seen = np.array(Image.open("filled/measured/photo.png"))
    assert not seen[2:5, 3:6].any()
    record = json.loads(Path("filled/solve.json").read_text())
    assert len(record["mask"]) == 64


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--operator", "superresolution"], "did you mean 'super-resolution'"),
        (["--operator", "super-resolution(factor=3)"], "no multiple of factor=3"),
        (["--operator", "colorization"], "expected 3"),
        (["--operator", "inpainting"], "needs one of hole=SIDE"),
        (["--operator", "deblurring", "--mask", "a.png"], "a mask belongs to inpainting"),
        (["--operator", "deblurring", "--noise", "-1"], "standard deviation from 0 to 10"),
        (["--operator", "deblurring", "-n", 0], "expected 1 to"),
        (["--operator", "deblurring", "--method", "pgdm"], "did you mean 'pigdm'"),
        (["--operator", "deblurring", "--lpips", "a.png"], "need --degrade"),
        (["--operator", "deblurring", "--figure", "f.txt"], "--figure must end in"),
        (["--operator", "deblurring", "--sampler", "heun"], "needs a model that predicts the velocity"),
    ],
)
def test_mistakes_of_the_command_are_one_line(refused, runs, words, message):
    save("a.png", pixels(3)[1, 0])
    refused("solve", runs("heat"), "a.png", *words, *CPU, says=message)
    assert not Path("solved").exists()
