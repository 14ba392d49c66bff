"""The pipeline of diffusers: its arguments, callbacks and files, and our models in its schedulers."""

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import anisodiff
from anisodiff.training import Hooks, train
from anisodiff.training.preview import fit_prior
from tests.networks.test_network_contract import TABLE
from tests.support.classes import labeled_pixels
from tests.training.conftest import dataset, tiny  # noqa: F401

diffusers = pytest.importorskip("diffusers")
UNET, DIT = "diffusers:UNet2DModel", "diffusers:DiTTransformer2DModel"


@pytest.fixture(scope="module")
def runs(dataset, tmp_path_factory):  # noqa: F811
    """Short runs: a UNet and a DiT of diffusers, and NCSN++ with flow matching."""
    folder = tmp_path_factory.mktemp("runs")
    for name, changes in {
        "unet": {"network": {"name": UNET, **TABLE[UNET]}, "process": "ve"},
        "dit": {"network": {"name": DIT, **TABLE[DIT]}},
        "flow": {"process": "flow-matching", "t_min": 1e-5},
    }.items():
        train(tiny(images=16, **changes), dataset, folder / name, hooks=Hooks(fit_prior=fit_prior), track=())
    return folder


@pytest.fixture
def pipe(runs):
    from anisodiff import AnisoDiffPipeline

    found = AnisoDiffPipeline.from_pretrained(runs / "unet")
    found.set_progress_bar_config(disable=True)
    return found


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_it_is_a_pipeline_of_diffusers(pipe):
    assert isinstance(pipe, diffusers.DiffusionPipeline)
    assert list(pipe.components) == ["model"]
    assert pipe.device == torch.device("cpu")
    assert pipe.to("cpu") is pipe
    assert pipe.dtype == torch.float32


def test_images_are_those_of_the_generator(pipe, runs):
    """A generator draws the first seed: the same as for `Generator.sample`."""
    made = pipe(batch_size=3, generator=seeded(), num_inference_steps=6, output_type="pt").images
    expected = anisodiff.load(runs / "unet", "cpu").sample(3, seed=seeded(), steps=6, batch=3)
    assert torch.equal(made, expected)
    each = pipe(batch_size=2, generator=[seeded(5), seeded(6)], num_inference_steps=6, output_type="pt").images
    first = pipe(batch_size=1, generator=seeded(5), num_inference_steps=6, output_type="pt").images
    torch.testing.assert_close(each[:1], first, rtol=0, atol=1e-5)
    torch.manual_seed(3)
    one = pipe(num_inference_steps=4, output_type="np").images
    torch.manual_seed(3)
    assert np.array_equal(one, pipe(num_inference_steps=4, output_type="np", return_dict=False)[0])
    assert one.shape == (1, 8, 8, 1)


def test_pictures(pipe):
    picture = pipe(generator=seeded(), num_inference_steps=4).images[0]
    assert isinstance(picture, Image.Image)
    assert picture.size == (8, 8)


def test_callbacks_see_every_step_and_may_stop(pipe):
    seen = []

    def watch(pipeline, step, t, given):
        assert pipeline is pipe
        seen.append((step, t, given["latents"].shape))
        return given

    pipe(batch_size=2, generator=seeded(), num_inference_steps=6, callback_on_step_end=watch)
    assert [step for step, _, _ in seen] == list(range(len(seen)))
    assert len(seen) >= 4
    times = [t for _, t, _ in seen]
    assert times == sorted(times, reverse=True)
    assert times[-1] == 0
    assert {shape for _, _, shape in seen} == {(2, 1, 8, 8)}

    def stop(pipeline, step, t, given):
        pipeline._interrupt = step == 1
        seen.append(step)

    seen.clear()
    out = pipe(batch_size=2, generator=seeded(), num_inference_steps=6, output_type="pt", callback_on_step_end=stop)
    assert seen == [0, 1]
    assert out.images.shape == (2, 1, 8, 8)


def test_the_progress_bar_ends_at_the_evaluations(pipe, capsys):
    pipe.set_progress_bar_config(disable=False, ncols=60, mininterval=0)
    pipe(generator=seeded(), num_inference_steps=6)
    total = pipe.generator.reverse_process(steps=6).nfe
    assert f"{total}/{total}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"output_type": "jpg"}, "output_type: got 'jpg', expected pil, np, pt"),
        ({"callback_on_step_end_tensor_inputs": ["noise"]}, "expected 'latents'"),
        ({"batch_size": 2, "generator": [torch.Generator()]}, "got 1 of them, expected 2"),
        ({"num_inference_steps": 0}, "steps: got 0, expected a whole number, 1 or more"),
        ({"callback_on_step_end": lambda p, s, t, given: {"latents": given["latents"] + 1}}, "cannot be changed"),
    ],
)
def test_mistakes(pipe, keys, says):
    with pytest.raises(ValueError, match=says):
        pipe(**keys)


@pytest.mark.parametrize("name", ["unet", "dit"])
def test_saved_and_loaded_the_images_are_equal(runs, name, tmp_path):
    from anisodiff import AnisoDiffPipeline

    pipe = AnisoDiffPipeline.from_pretrained(runs / name)
    pipe.set_progress_bar_config(disable=True)
    words = {"batch_size": 2, "num_inference_steps": 6, "output_type": "pt"}
    before = pipe(generator=seeded(), **words).images
    pipe.save_pretrained(tmp_path / "model", samples=0)
    assert (tmp_path / "model" / "model_index.json").is_file()
    again = AnisoDiffPipeline.from_pretrained(tmp_path / "model")
    assert torch.equal(before, again(generator=seeded(), **words).images)
    loaded = anisodiff.load(tmp_path / "model", "cpu").sample(2, seed=seeded(), steps=6, batch=2)
    assert torch.equal(before, loaded)
    with pytest.raises(ValueError, match=r"expected torch\.float32 or torch\.bfloat16"):
        AnisoDiffPipeline.from_pretrained(tmp_path / "model", torch_dtype=torch.float16)


def test_model_index_imports_nothing(runs, tmp_path, monkeypatch):
    from anisodiff import AnisoDiffPipeline

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("trap.py").write_text("open('ran', 'w')")
    anisodiff.load(runs / "unet", "cpu").save_pretrained("model", samples=0)
    Path("model/model_index.json").write_text('{"_class_name": ["trap", "P"], "model": ["trap", "Net"]}')
    AnisoDiffPipeline.from_pretrained("model")
    assert not Path("ran").exists()


@pytest.fixture(scope="module")
def labeled(tmp_path_factory):
    """A short run with two classes, long enough for the classes to differ."""
    folder = tmp_path_factory.mktemp("labeled") / "run"
    pixels, labels = labeled_pixels()
    words = {"size": 8, "network": {"name": "tiny", "nf": 8}, "batch": 8, "images": 400, "lr": 1e-2, "warm_up": 0}
    words |= {"ema": "constant(decay=0.9)", "sample_every": 0, "process": "ve"}
    return anisodiff.train(pixels, folder, labels=labels, classes="auto", device="cpu", track=(), **words)


def test_classes_and_guidance(labeled):
    """As in DiTPipeline: one label for each image, whatever their seeds, and the batch follows from the labels."""
    from anisodiff import AnisoDiffPipeline

    pipe = AnisoDiffPipeline(labeled)
    pipe.set_progress_bar_config(disable=True)
    words = {"num_inference_steps": 6, "output_type": "pt"}

    def alone(label: int, seed: int, guidance: float) -> torch.Tensor:
        return labeled.sample(1, seed=seeded(seed), steps=6, classes=label, guidance=guidance)

    twice = [seeded(5), seeded(5)]  # one noise, two classes
    made = pipe(class_labels=[1, 0], generator=twice, guidance_scale=20.0, **words).images
    torch.testing.assert_close(made, torch.cat([alone(1, 5, 20.0), alone(0, 5, 20.0)]), rtol=0, atol=1e-4)
    assert (made[0] - made[1]).abs().max() > 5e-3
    named = pipe(class_labels=["1", "0"], generator=[seeded(5), seeded(5)], guidance_scale=20.0, **words).images
    assert torch.equal(made, named)
    assert torch.equal(
        pipe(class_labels=torch.tensor([1, 1]), generator=seeded(3), **words).images,
        pipe(class_labels=1, batch_size=2, generator=seeded(3), **words).images,
    )
    for keys, says in (
        ({"class_labels": [0, 1], "batch_size": 3}, "class_labels: got 2 of them, expected 3"),
        ({"class_labels": [0, 2]}, "expected a label from 0 to 1, or a name"),
        ({"class_labels": "none", "guidance_scale": 2.0}, "it needs a class, and 'none' is unconditional"),
    ):
        with pytest.raises(ValueError, match=says):
            pipe(**keys, **words)


def test_classes_in_a_scheduler(labeled, runs):
    """The guided sum of two answers, as loops of diffusers have it, is the answer of the guided model."""
    from anisodiff.pipelines.denoiser import for_schedulers

    unet, _ = for_schedulers(labeled)
    x, sigma = torch.randn(2, 1, 8, 8, generator=seeded()), torch.tensor([0.7], dtype=torch.float64)
    timestep, labels = 0.25 * sigma.log(), torch.tensor([0, 1])
    null, told = (unet(x, timestep, class_labels=given).sample for given in (None, labels))
    assert torch.equal(null, unet(x, timestep, torch.tensor([2, 2])).sample)
    assert not torch.equal(null, told)
    guided = labeled.model.given(labels, anisodiff.Guidance(weight=3.0))
    with torch.no_grad():
        expected = unet.answer(guided, x, timestep)
    torch.testing.assert_close(null + 3.0 * (told - null), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="expected whole numbers from 0 to 2, the null label"):
        unet(x, timestep, torch.tensor([0, 3]))
    with pytest.raises(ValueError, match="got 3 of them, expected 2"):
        unet(x, timestep, torch.tensor([0, 1, 1]))
    plain, _ = for_schedulers(anisodiff.load(runs / "unet", "cpu"))
    with pytest.raises(ValueError, match="has learned no classes"):
        plain(x, timestep, 0)


def test_ve_in_the_schedulers_of_edm(runs):
    """EDMEulerScheduler with our network is Euler's method for dx/dσ = (x − D(x, σ))/σ."""
    from anisodiff.pipelines.denoiser import for_schedulers

    unet, scheduler = for_schedulers(anisodiff.load(runs / "unet", "cpu"))
    scheduler.set_timesteps(6)
    sigmas = scheduler.sigmas.double()
    x = expected = torch.randn(2, 1, 8, 8, generator=seeded()) * float(sigmas[0])
    for t in scheduler.timesteps:
        out = unet(scheduler.scale_model_input(x, t), t).sample
        x = scheduler.step(out, t, x).prev_sample
    for now, then in pairwise(sigmas):
        image = unet.image(unet.model, expected, now.reshape(1))
        expected = expected + float((then - now) / now) * (expected - image)
    torch.testing.assert_close(x, expected, rtol=1e-3, atol=1e-3)
    assert float(unet.time_of(sigmas[:1])) == pytest.approx(2.0)


def test_the_sigma_of_ve_is_that_of_its_states(runs):
    from anisodiff.pipelines.denoiser import for_schedulers

    model = anisodiff.load(runs / "unet", "cpu")
    unet, _ = for_schedulers(model)
    black = torch.zeros(400, 1, 8, 8)
    for t in (0.3, 1.0, 2.0):
        spread = 2 * float(model.process.simulate(black, t, seeded()).std())
        found = float(unet.time_of(torch.tensor([spread], dtype=torch.float64)))
        assert found == pytest.approx(t, abs=0.02)


def test_flow_matching_in_its_scheduler(runs):
    from anisodiff.pipelines.denoiser import for_schedulers

    model = anisodiff.load(runs / "flow", "cpu")
    unet, scheduler = for_schedulers(model)
    scheduler.set_timesteps(6)
    sigmas = scheduler.sigmas.double()
    x = expected = torch.randn(2, 1, 8, 8, generator=seeded())
    for t in scheduler.timesteps:
        x = scheduler.step(unet(x, t).sample, t, x).prev_sample
    for now, then in pairwise(sigmas):
        with torch.no_grad():
            expected = expected + float(then - now) * model.model.velocity(expected, now.reshape(1))
    torch.testing.assert_close(x, expected, rtol=1e-4, atol=1e-4)


def test_processes_without_a_scheduler_are_refused(runs):
    from anisodiff.pipelines.denoiser import for_schedulers

    with pytest.raises(ValueError, match="process heat: no scheduler of diffusers fits"):
        for_schedulers(anisodiff.load(runs / "dit", "cpu"))


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    monkeypatch.delitem(sys.modules, "anisodiff.pipelines.pipeline", raising=False)
    monkeypatch.delattr(anisodiff, "AnisoDiffPipeline", raising=False)
    says = r"^AnisoDiffPipeline needs the package diffusers: pip install 'anisodiff\[diffusers\]'$"
    with pytest.raises(ValueError, match=says):
        anisodiff.AnisoDiffPipeline  # noqa: B018
    assert "AnisoDiffPipeline" not in anisodiff.__all__  # `from anisodiff import *` needs no extra
