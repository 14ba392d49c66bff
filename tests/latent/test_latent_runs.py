"""Training, sampling and editing on latents, through the same calls as on pixels."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import anisodiff
from anisodiff.data import in_memory, open_dataset, prepare
from anisodiff.editing import edit
from anisodiff.editing.solving import solve
from anisodiff.generation import load
from anisodiff.generation.protocol import describe as describe_samples
from anisodiff.io.arrays import read_pixels
from anisodiff.io.checkpoint import find
from anisodiff.latent.autoencoder import WEIGHTS, describe
from anisodiff.metrics.samples import is_model
from anisodiff.noise import KeyedNoise
from anisodiff.pipelines.pipeline import AnisoDiffPipeline
from anisodiff.priors import choose
from anisodiff.training import Hooks, Plan, TrainConfig, train
from anisodiff.training.preview import fit_prior, showing
from anisodiff.training.setup import describe as describe_run
from anisodiff.training.setup import with_latents
from anisodiff.training.start import load_start
from tests.experiments.conftest import NETWORK as FEATURES
from tests.experiments.conftest import SETTINGS
from tests.latent.conftest import FACTOR, SIZE, pixels, write_autoencoder
from tests.metrics.conftest import save_network
from tests.support.children import together

NETWORK = {"name": "small", "nf": 8, "multipliers": [1, 1], "blocks": 1, "dropout": 0.2}


def config(autoencoder, **changes) -> TrainConfig:
    values = {
        "process": "anisotropic-gentle", "network": NETWORK, "size": SIZE, "channels": 3, "batch": 4, "images": 24,
        "warm_up": 8, "calibration": 16, "log_every": 8, "checkpoint_every": 12, "ema": ["constant(0.9)"],
        "latent": describe(autoencoder, online=False).as_keys(), "channel_pca": True,
    }  # fmt: skip
    return TrainConfig(**{**values, **changes})


def run(autoencoder, dataset, output, **changes):
    return train(config(autoencoder, **changes), dataset, output, device="cpu", hooks=Hooks(fit_prior=fit_prior))


def weights(path):
    return find(path).tensors("model")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, autoencoder):
    folder = tmp_path_factory.mktemp("runs")
    dataset = prepare(in_memory(pixels()), folder / "data", size=SIZE, channels=3).dataset
    run(autoencoder, dataset, folder / "run")
    return folder / "run", dataset


def test_the_network_sees_latents_and_users_see_images(trained):
    generator = load(trained[0], "cpu")
    assert (generator.channels, generator.size) == (3, SIZE)
    assert generator.state_shape == (3, SIZE[0] // FACTOR, SIZE[1] // FACTOR)
    assert "latents 3×4×8" in repr(generator)
    seen = []
    images = generator.sample(2, seed=0, steps=4, callback=lambda step: seen.append(generator.decode_step(step)))
    assert tuple(images.shape) == (2, 3, *SIZE)
    assert 0 <= float(images.min()) < float(images.max()) <= 1
    assert all(tuple(picture.shape) == (2, 3, *SIZE) for picture in seen)


def test_samples_are_decoded_states(trained):
    generator = load(trained[0], "cpu")
    codec, generator.codec = generator.codec, None
    reverse, prior = generator.reverse_process(steps=4), generator.prior()
    lasts = []

    def last(step):
        lasts.append(step.state) if step.number == step.of - 1 else None

    generator.codec = codec
    images = generator.sample_with(reverse, [0, 1], prior, callback=last).images
    # the last step maps the state at t_min to E[x0]: decode that by hand
    model = generator.model
    when = torch.tensor([generator.plan.config.t_min], dtype=torch.float64)
    with torch.no_grad():
        expected = codec.decode(model.denoised(model.to_coordinates(lasts[0]), when))
    torch.testing.assert_close(images, expected.clamp(0, 1), rtol=0, atol=1e-5)


def test_continuing_is_bitwise_equal_to_never_having_stopped(autoencoder, dataset, tmp_path):
    run(autoencoder, dataset, tmp_path / "whole")
    run(autoencoder, dataset, tmp_path / "parts", images=12)
    run(autoencoder, dataset, tmp_path / "parts")
    a, b = (weights(tmp_path / name) for name in ("whole", "parts"))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_another_autoencoder_is_another_run(autoencoder, dataset, tmp_path):
    run(autoencoder, dataset, tmp_path / "run", images=12)
    other = write_autoencoder(tmp_path / "other", block_out_channels=(8, 12))
    with pytest.raises(ValueError, match=r"holds another run: .*latent\.sha256"):
        run(other, dataset, tmp_path / "run")


def test_a_grid_of_samples_shows_images(autoencoder, dataset, tmp_path):
    shown = []
    made, _ = with_latents(config(autoencoder, sample_every=8), dataset, torch.device("cpu"))
    hooks = showing(tmp_path / "run", made, dataset, on_grid=lambda images, step: shown.append(images))
    train(made, dataset, tmp_path / "run", device="cpu", hooks=hooks)
    assert shown
    assert tuple(shown[0].shape[1:]) == (3, *SIZE)


def test_edits_keep_what_the_mask_keeps(trained):
    generator = load(trained[0], "cpu")
    images = torch.from_numpy(pixels(2)).float() / 255
    mask = torch.zeros(SIZE)
    mask[:, : SIZE[1] // 2] = 1
    edited = edit(generator, images, seeds=0, strength=0.6, steps=4, mask=mask)
    half = SIZE[1] // 2
    torch.testing.assert_close(edited[..., half:].as_subclass(torch.Tensor), images[..., half:], rtol=0, atol=0)
    assert not torch.equal(edited[..., :half], images[..., :half])


def test_priors_from_images_start_from_their_latents(trained):
    path, dataset = trained
    generator = load(path, "cpu", dataset)
    states = generator.prior("simulate").draw(4, None)
    assert tuple(states.shape) == (4, *generator.state_shape)
    assert tuple(generator.sample(2, steps=4, prior="simulate").shape) == (2, 3, *SIZE)
    terminal = generator.invert(dataset.first(2), steps=8, sampler="ode")
    assert tuple(terminal.shape) == (2, *generator.state_shape)


def test_a_prior_starts_from_the_latents_of_the_images_it_is_said_to(trained):
    """A protocol names the images: the source of a sample is found again by the same choice, of any number."""
    generator = load(trained[0], "cpu")
    images = torch.rand(5000, 3, *SIZE, generator=torch.Generator().manual_seed(0))
    prior = generator.named_prior("simulate", images).prior
    expected = generator.codec.encode(choose(images, 3, KeyedNoise(torch.arange(3))))
    torch.testing.assert_close(choose(prior.images, 3, KeyedNoise(torch.arange(3))), expected, rtol=0, atol=1e-5)


def test_protocol_and_card_name_the_autoencoder(trained, autoencoder, tmp_path):
    generator = load(trained[0], "cpu")
    code = generator.codec.autoencoder.sha256
    protocol = describe_samples(generator, generator.named_prior(), generator.reverse_process(steps=4), [0], None, 1)
    assert protocol["autoencoder"] == code
    folder = generator.save_pretrained(tmp_path / "given", samples=0)
    text = "".join(file.read_text() for file in folder.iterdir() if file.suffix in (".md", ".json"))
    assert str(autoencoder.parent) not in text  # the folders of this machine
    card = (folder / "README.md").read_text()
    assert f"3×4×8 of the autoencoder `{autoencoder.name}`, sha256 `{code[:16]}`" in card
    assert f"anisodiff.load('given', latent='{autoencoder.name}')" in card
    with pytest.raises(ValueError, match=r"holds no autoencoder: .* give its folder with --latent"):
        load(folder, "cpu")
    again = AnisoDiffPipeline.from_pretrained(folder, latent=autoencoder)
    assert again(num_inference_steps=4).images[0].size == SIZE[::-1]


def test_a_run_trains_on_without_its_autoencoder(dataset, tmp_path):
    folder = write_autoencoder(tmp_path / "ae")
    made, _ = with_latents(config(folder, sample_every=8), dataset, torch.device("cpu"))
    folder.rename(tmp_path / "elsewhere")
    said = []
    hooks = showing(tmp_path / "run", made, dataset, say=said.append)
    assert train(made, dataset, tmp_path / "run", device="cpu", hooks=hooks).finished
    assert len([line for line in said if line.startswith("no grids of samples: the autoencoder of this")]) == 1
    assert not (tmp_path / "run" / "samples").exists()


def test_a_run_keeps_its_scale_but_not_that_of_other_images(autoencoder, dataset, tmp_path, monkeypatch):
    cpu = torch.device("cpu")
    monkeypatch.chdir(autoencoder.parent)
    relative = {**describe(autoencoder, online=False).as_keys(), "autoencoder": autoencoder.name}
    first, latents = with_latents(config(autoencoder, latent=relative), dataset, cpu)
    assert first.latent["autoencoder"] == str(autoencoder.resolve())  # whatever folder is the current one later
    rounded = {**first.latent, "mean": [m * (1 + 1e-5) for m in first.latent["mean"]]}
    kept, again = with_latents(replace(first, latent=rounded), dataset, cpu)
    assert kept.latent == rounded
    assert again.scale.mean == tuple(rounded["mean"])
    other = {**first.latent, "std": [2 * s for s in first.latent["std"]]}
    assert with_latents(replace(first, latent=other), dataset, cpu)[0] == first
    assert latents.scale.std == tuple(first.latent["std"])


def test_fine_tuning_keeps_the_scale_of_the_start(trained, autoencoder, tmp_path):
    """What a state means to the network stays, also when the fine-tuned run continues; not with other weights."""
    start, _ = trained
    cpu, brighter = torch.device("cpu"), pixels(seed=1) // 2 + 100
    dataset = prepare(in_memory(brighter), tmp_path / "data", size=SIZE, channels=3).dataset
    old, own = find(start).meta["config"]["latent"], with_latents(config(autoencoder), dataset, cpu)[0].latent
    assert max(abs(a / b - 1) for a, b in zip(own["std"], old["std"])) > 0.005  # far beyond rounding
    for images in (8, 12):
        made = config(autoencoder, images=images)
        train(made, dataset, tmp_path / "run", device="cpu", start=start, hooks=Hooks(fit_prior=fit_prior))
        assert find(tmp_path / "run").meta["config"]["latent"] == {**own, "mean": old["mean"], "std": old["std"]}
    kept, latents = with_latents(load(tmp_path / "run", "cpu").plan.config, dataset, cpu, start=tmp_path / "gone")
    assert latents.scale.std == tuple(kept.latent["std"]) == tuple(old["std"])
    other = write_autoencoder(tmp_path / "ae", block_out_channels=(8, 12))
    assert with_latents(config(other), dataset, cpu, start=start)[0].latent["std"] != old["std"]


def test_an_autoencoder_of_another_image_size_is_told(dataset, tmp_path):
    said = []
    for side in (16, 64):
        folder = write_autoencoder(tmp_path / str(side), sample_size=side)
        with_latents(config(folder), dataset, torch.device("cpu"), say=said.append)
    (line,) = said  # images are 8×16: 16 is their own size
    assert line.startswith("the autoencoder was trained on images of 64×64 (sample_size in its config.json), these")


def test_a_start_of_another_latent_space_gives_weights_alone(trained, autoencoder, tmp_path):
    path, dataset = trained
    other = write_autoencoder(tmp_path / "ae")
    tensors = load_file(other / WEIGHTS)
    tensors["encoder.conv_out.bias"] += 1
    save_file(tensors, other / WEIGHTS)
    found = []
    for folder in (autoencoder, other):
        plan = Plan.of(with_latents(config(folder), dataset, torch.device("cpu"))[0])
        found.append(load_start(path, plan, describe_run(plan, dataset)))
    assert found[0].statistics is not None
    assert found[0].prior is not None
    assert (found[1].statistics, found[1].prior) == (None, None)
    assert found[1].words.endswith("; it was trained on latents of another autoencoder")
    assert found[0].tensors.keys() == found[1].tensors.keys()


def test_what_is_of_pixels_alone_is_refused(trained):
    generator = load(trained[0], "cpu")
    with pytest.raises(ValueError, match="an operator acts on pixels"):
        solve(generator, torch.rand(1, 3, *SIZE), "inpainting", noise=0.0, seeds=0)
    with pytest.raises(ValueError, match="it filters images, got latents"):
        Plan.of(replace(generator.plan.config, process={"preset": "ve", "condition": "perona-malik"}))
    with pytest.raises(ValueError, match="this model makes pixels"):
        load("cifar10-tiny", "cpu", latent="somewhere")


def test_a_moved_autoencoder_is_named_and_found_again(autoencoder, dataset, tmp_path):
    here = write_autoencoder(tmp_path / "here")
    run(here, dataset, tmp_path / "run", images=12)
    expected = load(tmp_path / "run", "cpu").sample(1, steps=4)
    here.rename(tmp_path / "there")
    with pytest.raises(ValueError, match=r"the autoencoder of this model: .*/here holds no autoencoder"):
        load(tmp_path / "run", "cpu")
    found = load(tmp_path / "run", "cpu", latent=tmp_path / "there").sample(1, steps=4)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_two_processes_equal_one(autoencoder, dataset, tmp_path):
    run(autoencoder, dataset, tmp_path / "one")
    together(lambda rank: run(autoencoder, dataset, tmp_path / "two"))
    a, b = (weights(tmp_path / name) for name in ("one", "two"))
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-5)


def test_flow_matching_trains_on_latents(autoencoder, dataset, tmp_path):
    run(
        autoencoder, dataset, tmp_path / "run", process="flow-matching", channel_pca=False, t_min=1e-5, images=8,
        checkpoint_every=0,
    )  # fmt: skip
    assert tuple(load(tmp_path / "run", "cpu").sample(1, steps=4).shape) == (1, 3, *SIZE)


def test_the_whole_way_by_commands(command, autoencoder, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for number, picture in enumerate(pixels(12)):
        Image.fromarray(picture.transpose(1, 2, 0)).save(photos / f"{number:02d}.png")
    small = ["--set", "network.nf=8", "--set", "network.multipliers=[1, 1]", "--set", "network.blocks=1"]
    small += ["--set", "batch=4", "--set", "calibration=16", "--images", "8", "--device", "cpu"]
    words = ("train", "--data", photos, "--latent", autoencoder, "--out", "run", *small, "--dry-run")
    code, out, err = command(*words)
    assert (code, "# encoding the images, once: " in out) == (0, True), err
    code, facts, err = command(*words, "--json")
    numbers = json.loads(facts[facts.index("{\n") :])
    parts = numbers["seconds_encoding"], numbers["seconds_before"], 0.008 * numbers["seconds_per_thousand"]
    assert numbers["seconds_in_all"] == pytest.approx(sum(parts))
    assert min(parts) > 0
    code, out, err = command("data", "prepare", photos, "--out", "data", "--latent", autoencoder, "--device", "cpu")
    assert (code, "latents 3×8×8 of" in out) == (0, True), err
    code, out, err = command("train", "--data", "data", "--latent", autoencoder, "--out", "run", *small)
    assert code == 0, err
    assert "latents 3×8×8 of" in err
    assert command("train", "--out", "run", "--device", "cpu")[0] == 0
    code, out, err = command("train", "--data", "data", "--latent", autoencoder, "--out", "run", *small, "--dry-run")
    assert (code, "without --dry-run this command would continue it" in out) == (0, True), err
    assert "encoding" not in out  # they are encoded
    code, out, err = command(
        "sample", "run", "-n", 2, "--steps", 4, "--out", "s", "--strip", "s.png", "--device", "cpu"
    )
    assert code == 0, err
    assert Image.open(tmp_path / "s" / "00000000.png").size == (16, 16)
    code, out, err = command(
        "edit", "run", photos / "00.png", "--steps", 4, "--out", "e", "--latent", autoencoder, "--device", "cpu"
    )
    assert code == 0, err
    assert is_model(tmp_path / "run")
    code, out, err = command(
        "evaluate", "run", "--n", 4, "--steps", 4, "--metrics", "spectrum,sliced", "--device", "cpu"
    )
    assert code == 0, err
    code, out, err = command("evaluate", "run", "--n", 4, "--metrics", "bits", "--device", "cpu")
    assert (code, "bits does not apply: the model is one of latents" in err) == (2, True)
    code, out, err = command(
        "diagnose", photos, "--size", 8, "--latent", autoencoder, "--images", 8, "--device", "cpu"
    )
    assert (code, "12 at 4×4" in out or "8 at 4×4" in out) == (0, True), err


def test_a_recipe_without_its_autoencoder_is_refused_before_images_are_prepared(command, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    photos = tmp_path / "photos"
    photos.mkdir()
    Image.fromarray(pixels(1)[0].transpose(1, 2, 0)).save(photos / "0.png")
    code, _, err = command("train", "scenes128-latent", "--data", photos, "--out", "run", "--device", "cpu")
    assert (code, "autoencoder holds no autoencoder: expected config.json" in err) == (2, True)
    assert not (tmp_path / "run").exists()


def test_classes_are_learned_in_latent_space(autoencoder, tmp_path):
    labels = np.arange(12) % 2
    model = anisodiff.train(
        torch.from_numpy(pixels(12)), tmp_path / "run", labels=labels, classes="auto", latent=autoencoder,
        network=NETWORK, batch=4, images=8, calibration=16, device="cpu", progress=False,
    )  # fmt: skip
    assert tuple(model.sample(2, steps=4, classes=[0, 1], guidance=2.0).shape) == (2, 3, *SIZE)


def test_python_takes_an_autoencoder_by_its_folder(autoencoder, tmp_path):
    model = anisodiff.train(
        torch.from_numpy(pixels(12)), tmp_path / "run", latent=autoencoder, network=NETWORK, batch=4, images=8,
        calibration=16, device="cpu", progress=False,
    )  # fmt: skip
    assert model.codec is not None
    assert open_dataset(tmp_path / "run" / "data").size == SIZE
    assert tuple(model.sample(1, steps=4).shape) == (1, 3, *SIZE)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"size": (8, 15)}, "size: got 8×15 with a 2-fold autoencoder, expected multiples of 2"),
        ({"latent": "somewhere"}, "expected autoencoder, channels and factor"),
        ({"latent": {"autoencoder": "a", "channels": 0, "factor": 2}}, "latent.channels"),
        ({"latent": {"autoencoder": "a", "channels": 3, "factor": 2, "std": [1, 0, 1]}}, "3 numbers, all positive"),
        ({"latent": {"autoencoder": "a", "channels": 3, "factor": 2, "code": 1}}, "unknown key 'code'"),
        ({"latent": {"autoencoder": "a", "channels": 3, "factor": 2, "sha256": 5}}, "expected 64 hexadecimal digits"),
    ],
)
def test_configs_that_cannot_be(autoencoder, changes, says):
    with pytest.raises(ValueError, match=says):
        config(autoencoder, **changes)


def test_a_run_on_latents_is_compared_with_one_on_pixels_by_its_decoded_images(
    command, autoencoder, dataset, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    save_network(tmp_path / "tiny.pt")
    latent = f"ve:latent.autoencoder={autoencoder};latent.channels=3;latent.factor=2;name=latent"
    words = ("--images", 8, "--n", 12, "--steps", 4, "--edit", "data", "--edit-n", 4, "--strengths", "0.5")
    words = (*words, "--data", dataset.path, *SETTINGS, *FEATURES, "--device", "cpu", "--out", "study")
    code, out, err = command("compare", latent, "ve", *words)
    assert code == 0, err
    results = tmp_path / "study" / "results"
    for column, count in (("gaussian-4", 12), ("edit-0.5", 4)):
        for name in ("latent", "ve"):
            assert read_pixels(results / name / f"{column}.npz").shape == (count, 3, *SIZE)
    assert out.count("Trained on latents: latent; decoded images are compared") == 1
    page = (results / "page.md").read_text()
    assert "'autoencoder': '" in page
    assert str(autoencoder.parent) not in page
