"""Bits per dimension as a number of a report: paired, whatever the batch and the order, with an honest error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from anisodiff.data import prepare
from anisodiff.generation import Generator
from anisodiff.generation.loaded_model import CheckpointOrigin
from anisodiff.metrics import (
    BitsSettings,
    Context,
    Report,
    Settings,
    bits_per_dimension,
    comparison_table,
    evaluate,
    image_statistics,
    no_network,
)
from anisodiff.metrics.bits import mean_and_error
from anisodiff.metrics.images import image_set
from anisodiff.path_bound import PathBound
from anisodiff.training.model import Plan, Trained
from tests.metrics.conftest import Process, random_images, save_folder
from tests.support.exact_bound import SIZE, ExactModel, exact_prior
from tests.support.oracles import at, gaussian_images, keys
from tests.training.conftest import pixels, tiny

FEW = BitsSettings(images=12, times=2, batch_size=5)


def untrained(process: str = "heat", seed: int = 0, **keys: Any) -> Generator:
    """A model whose network has its first weights."""
    plan = Plan.of(tiny(process={"preset": process, **keys}, seed=seed))
    images = torch.from_numpy(pixels(40)).float() / 255
    network = plan.build(torch.device("cpu"))
    with torch.no_grad():  # the last layer begins at zero: all first networks are the same
        for weight in network.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed))
    model, prior = plan.model(network, plan.statistics(images)).eval(), plan.process.prior(images)
    trained = Trained(plan=plan, model=model, prior={"mean": prior.mean, "root": prior.root}, meta={})
    origin = CheckpointOrigin(path="untrained", model=f"{seed}" * 64, prior=None)
    return Generator(trained, origin, device=torch.device("cpu"), precision="fp32")


@pytest.fixture(scope="module")
def model() -> Generator:
    return untrained()


def test_a_mean_over_images_with_its_parts_and_error(model: Generator) -> None:
    report = bits_per_dimension(model, pixels(20), heldout=pixels(9, seed=1), settings=FEW)
    names = ["bits", "bits_path", "bits_prior", "bits_last"]
    assert [v.name for v in report.values] == names + [f"{name}_heldout" for name in names]
    for ending, count in (("", 12), ("_heldout", 9)):
        bits = report[f"bits{ending}"]
        each = np.array(bits.each)
        assert len(each) == count
        assert bits.value == pytest.approx(each.mean())
        assert bits.error == pytest.approx(each.std(ddof=1) / count**0.5)
        assert bits.value == pytest.approx(sum(report[f"{name}{ending}"].value for name in names[1:]))
        assert 1 < bits.value < 12
    assert report.protocol.line() == (
        f"model model (00000000, 8×8; prior gaussian) on 20 of array ({report.protocol.reference_fingerprint[:8]}), "
        f"held-out {str(report.protocol.heldout_fingerprint)[:8]}; bits: at most 12 images, 2 times each, "
        f"bins of 1/255, float32, seed 0; anisodiff {report.protocol.version}"
    )
    assert Report.from_json(report.to_json()) == report


def test_batch_order_and_processes_change_nothing(model: Generator) -> None:
    images = pixels(20)
    want = bits_per_dimension(model, images, settings=FEW)["bits"].each
    shuffled = images[np.random.default_rng(3).permutation(20)]
    others = [
        bits_per_dimension(model, shuffled, settings=replace(FEW, batch_size=20)),
        bits_per_dimension(model, images, settings=replace(FEW, batch_size=1)),
    ]
    parts: list[Any] = []
    second = Process(1, 2, lambda mine: [parts.append(mine) or mine])
    bits_per_dimension(model, images, settings=FEW, context=Context(distributed=second))
    first = Process(0, 2, lambda mine: [mine, *parts])
    others.append(bits_per_dimension(model, images, settings=FEW, context=Context(distributed=first)))
    for other in others:
        assert other["bits"].each == pytest.approx(want, rel=1e-4)
    again = bits_per_dimension(model, images, settings=replace(FEW, seed=1))["bits"].each
    assert again != pytest.approx(want, rel=1e-2)


def test_differences_of_two_models_are_paired(model: Generator) -> None:
    images, other = pixels(20), untrained(seed=1)
    one, two = (
        bits_per_dimension(m, images, name=name, settings=FEW) for m, name in ((model, "one"), (other, "two"))
    )
    gaps = np.array(two["bits"].each) - np.array(one["bits"].each)
    row = comparison_table([one, two], ["one", "two"]).splitlines()[-1]
    found = f"{gaps.mean():+.4f} ± {gaps.std(ddof=1) / 12**0.5:.4f}"
    assert [cell.strip() for cell in row.strip("|").split("|")] == ["bits − one", "", found]
    assert gaps.std() < 0.5 * np.hypot(np.std(one["bits"].each), np.std(two["bits"].each))
    assert "+0.0000 ± 0.0000" in comparison_table([one, one], ["one", "again"])
    seeds = bits_per_dimension(model, images, settings=replace(FEW, seed=1))
    with pytest.raises(ValueError, match=r"different protocols .bits: .* seed 0 ≠ .* seed 1"):
        comparison_table([one, seeds], ["one", "seeds"])


def test_the_error_covers_the_truth() -> None:
    """300 trials of 40 images: the truth, ½ Σ ln(1 + S/N), lies within 1.96 errors in 95% of them."""
    from anisodiff import process

    exact = ExactModel(process("ve", SIZE, sigma_max=5.0))
    bound = PathBound(process=exact.process, model=exact, prior=exact_prior(exact), t_min=0.05, count=2)
    x0 = gaussian_images(12000, SIZE, seed=1)
    found = bound.path(x0, keys(12000)) + bound.start(x0, keys(12000))
    signal, noise = exact.powers(at(0.05))
    truth = float(0.5 * torch.log1p(signal / noise).sum())
    trials = [mean_and_error(part) for part in found.split(40)]
    covered = sum(abs(mean - truth) < 1.96 * error for mean, error in trials) / len(trials)
    assert 0.9 < covered < 0.985  # ± 4 binomial deviations, but for the heavier tails of Student's law


def test_images_at_a_path_are_brought_to_the_size_of_the_model(model: Generator, tmp_path: Path) -> None:
    """Mixed sizes, in color: as `data prepare` makes them 8×8 and gray."""
    folder = save_folder(random_images(4, size=16), tmp_path / "photos")
    Image.fromarray(np.full((20, 12, 3), 90, np.uint8)).save(folder / "tall.png")
    prepared = prepare(folder, tmp_path / "prepared", size=8, channels=1).dataset
    found = bits_per_dimension(model, folder, heldout=str(folder), settings=FEW)
    assert found["bits"].each == bits_per_dimension(model, prepared.images, settings=FEW)["bits"].each
    assert found["bits_heldout"].each == found["bits"].each
    assert found.protocol.reference_resize == "luma, center crop, Lanczos"


def test_what_cannot_be_measured_is_refused(model: Generator) -> None:
    with pytest.raises(ValueError, match=r"images are 4×4, the model makes 8×8"):
        bits_per_dimension(model, pixels(4)[..., :4, :4], settings=FEW)
    with pytest.raises(ValueError, match="got 1 image, expected at least 2"):
        bits_per_dimension(model, pixels(1), settings=FEW)
    from anisodiff.metrics import Reference

    known = image_statistics(image_set(pixels(4)), no_network(), settings=Settings())
    with pytest.raises(ValueError, match="bits need the images, not their statistics"):
        bits_per_dimension(model, Reference(name="known", split="", content=known), settings=FEW)
    with pytest.raises(ValueError, match="bits does not apply: with step='exponential"):
        bits_per_dimension(untrained("anisotropic"), pixels(4), settings=FEW)
    with pytest.raises(ValueError, match="bits does not apply: it needs no samples"):
        evaluate(pixels(4), pixels(4), metrics=("bits",))
    with pytest.raises(ValueError, match="times: got 0, expected a whole number, 1 or more"):
        BitsSettings(times=0)


@pytest.mark.parametrize("name", ["ve", "anisotropic-gentle", "flow-matching"])
def test_every_model_with_a_path_has_bits(name: str) -> None:
    """With their first weights, or near them, none is better than 8 bits by much, nor absurd."""
    own = {"sigma_min": 0.0} if name == "flow-matching" else {}
    report = bits_per_dimension(untrained(name, **own), pixels(10), settings=FEW)
    assert 3 < report["bits"].value < 14
