"""Our reading of an autoencoder against diffusers' own."""

import json
import os

import pytest
import torch
from diffusers import AutoencoderKL, AutoencoderTiny
from safetensors.torch import load_file, save_file

from anisodiff.data.latents import LatentScale
from anisodiff.latent import autoencoder as module
from anisodiff.latent.autoencoder import CONFIG, WEIGHTS, describe, open_autoencoder
from anisodiff.latent.codec import codec_of, in_channels
from tests.latent.conftest import CHANNELS, FACTOR, pixels, write_autoencoder


def images(count=3):
    return torch.from_numpy(pixels(count)).float() / 255


@pytest.mark.parametrize("kind", [AutoencoderKL, AutoencoderTiny])
def test_codes_as_diffusers_does(tmp_path, kind):
    folder = write_autoencoder(tmp_path / "ae", kind=kind)
    ours, theirs = open_autoencoder(folder), kind.from_pretrained(folder).eval()
    assert (ours.about.channels, ours.about.factor) == (CHANNELS, FACTOR)
    mean, std = ours.encode(images())
    with torch.no_grad():
        found = theirs.encode(2 * images() - 1)
        expected = theirs.decode(mean).sample / 2 + 0.5
    if kind is AutoencoderKL:
        torch.testing.assert_close(mean, found.latent_dist.mean, rtol=0, atol=1e-6)
        torch.testing.assert_close(std, found.latent_dist.std, rtol=0, atol=1e-6)
    else:
        torch.testing.assert_close(mean, found.latents, rtol=0, atol=1e-6)
        assert std is None
    torch.testing.assert_close(ours.decode(mean), expected.clamp(0, 1), rtol=0, atol=1e-6)


def test_reads_the_attention_names_of_older_files(tmp_path):
    """stabilityai/sd-vae-ft-mse was written before diffusers renamed them."""
    folder = write_autoencoder(tmp_path / "ae")
    expected = open_autoencoder(folder).encode(images())[0]
    old = {".to_q.": ".query.", ".to_k.": ".key.", ".to_v.": ".value.", ".to_out.0.": ".proj_attn."}
    renamed = {}
    for name, value in load_file(folder / WEIGHTS).items():
        for now, before in old.items():
            name = name.replace(now, before)
        renamed[name] = value
    assert any(".proj_attn." in name for name in renamed)
    save_file(renamed, folder / WEIGHTS)
    torch.testing.assert_close(open_autoencoder(folder).encode(images())[0], expected, rtol=0, atol=0)


def test_finds_the_autoencoder_of_a_pipeline(tmp_path):
    write_autoencoder(tmp_path / "pipeline" / "vae")
    assert describe(tmp_path / "pipeline", online=False).folder == tmp_path / "pipeline" / "vae"


def test_a_large_image_is_coded_in_tiles(autoencoder, monkeypatch):
    """Tiles overlap and are blended. Each is normalized by itself, so the result is only close to the whole."""
    z = torch.randn(1, CHANNELS, 40, 40, generator=torch.Generator().manual_seed(0))
    expected = open_autoencoder(autoencoder).decode(z)
    monkeypatch.setattr(module, "TILE", 32)
    tiled = open_autoencoder(autoencoder)
    found = tiled.decode(z)
    assert found.shape == expected.shape == (1, 3, 80, 80)
    assert not torch.equal(found, expected)  # the tiles were really used
    assert float((found - expected).abs().mean()) < 0.5 * float(expected.std())
    assert tiled.encode(found)[0].shape == z.shape


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"_class_name": "EvilModel"}, "got the class 'EvilModel', expected AutoencoderKL or AutoencoderTiny"),
        ({"latent_channels": "many"}, "latent_channels"),
        ({"block_out_channels": [8] * 40}, "40 levels, expected 1 to 8"),
        ({"layers_per_block": 10**9}, "layers_per_block"),
        ({"block_out_channels": [8, 16]}, "describes another network than"),
        ({"act_fn": [[]]}, "diffusers cannot use it"),
        ({"norm_num_groups": -1}, "diffusers cannot use it"),
        ({"out_channels": 16}, "in_channels and out_channels are 3 and 16"),
        ({"scaling_factor": ["much"]}, "scaling_factor: got list, expected a number"),
    ],
)
def test_refuses_a_config_that_is_not_of_these_weights(tmp_path, changes, says):
    folder = write_autoencoder(tmp_path / "ae")
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, **changes}))
    with pytest.raises(ValueError, match=says):
        open_autoencoder(folder)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"upsampling_scaling_factor": 4096}, "upsampling_scaling_factor: got 4096"),
        (
            {"decoder_block_out_channels": [8, 8, 8], "num_decoder_blocks": [1, 1, 1]},
            "encoder_block_out_channels and decoder_block_out_channels are 2 and 3",
        ),
    ],
)
def test_refuses_a_tiny_one_that_decodes_to_another_size(tmp_path, changes, says):
    with pytest.raises(ValueError, match=says):
        describe(write_autoencoder(tmp_path / "ae", kind=AutoencoderTiny, **changes), online=False)


def test_missing_weights_show_before_any_work(tmp_path, monkeypatch):
    folder = write_autoencoder(tmp_path / "ae")
    (folder / WEIGHTS).unlink()
    with pytest.raises(ValueError, match=f"{WEIGHTS} is missing: expected the weights beside"):
        describe(folder, online=False)
    # of a repository of which other files were downloaded, the Hub's cache has a folder
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda **_: str(folder))
    with pytest.raises(
        ValueError, match=f"no {WEIGHTS} of owner/name here .it has not been downloaded.; where there"
    ):
        describe("owner/name", online=False)


def test_says_how_to_provide_what_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"holds no autoencoder: expected config\.json and diffusion_pytorch_model"):
        describe(tmp_path / "empty", online=False)
    with pytest.raises(ValueError, match=r"hf download stabilityai/sd-vae-ft-mse .* and give --latent FOLDER"):
        describe("stabilityai/sd-vae-ft-mse", online=False)


def test_refuses_an_image_that_it_cannot_code(autoencoder):
    with pytest.raises(ValueError, match="sides that are multiples of 2, got 3×7×8"):
        open_autoencoder(autoencoder).encode(torch.rand(1, 3, 7, 8))


def keys(folder, **changes):
    about = describe(folder, online=False)
    return {**about.as_keys(), "scale": about.scale, "mean": [0.0] * 3, "std": [1.0] * 3, **changes}


def test_a_decoder_of_another_shape_or_scale_is_refused_with_both(tmp_path, autoencoder):
    other = write_autoencoder(tmp_path / "other", channels=5)
    with pytest.raises(ValueError, match=r"got 5 channels, 2-fold, .*; expected 3 channels, 2-fold"):
        codec_of(keys(autoencoder), 3, "cpu", str(other))
    scaled = write_autoencoder(tmp_path / "scaled", scaling_factor=0.5)
    with pytest.raises(ValueError, match=r"scaling 0.5, shift 0; expected .* scaling 0.18215"):
        codec_of(keys(autoencoder), 3, "cpu", str(scaled))


def test_weights_that_have_changed_are_used_only_where_they_are_named(tmp_path):
    folder = write_autoencoder(tmp_path / "ae")
    known = keys(folder, sha256=open_autoencoder(folder).sha256)
    assert codec_of(known, 3, "cpu").autoencoder.sha256 == known["sha256"]
    weights = load_file(folder / WEIGHTS)
    weights["decoder.conv_out.bias"] += 1
    save_file(weights, folder / WEIGHTS)
    with pytest.raises(ValueError, match=r"other weights than in training; .* --latent"):
        codec_of(known, 3, "cpu")
    assert codec_of(known, 3, "cpu", str(folder)).autoencoder.sha256 != known["sha256"]


def test_the_scale_and_its_inverse(autoencoder):
    scale = LatentScale((1.0, -2.0, 0.5), (0.5, 2.0, 4.0))
    z = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    x = scale.to_states(z)
    torch.testing.assert_close(x[:, 1], 0.5 + (z[:, 1] + 2) / 8)
    torch.testing.assert_close(scale.from_states(x), z)
    codec = codec_of(keys(autoencoder, mean=scale.mean, std=scale.std), 3, "cpu")
    picture = images(2)
    torch.testing.assert_close(
        codec.decode(codec.encode(picture)), codec.autoencoder.decode(codec.autoencoder.encode(picture)[0])
    )


def test_gray_images_go_through_a_colored_autoencoder(autoencoder):
    codec = codec_of(keys(autoencoder), 1, "cpu")
    gray = images(2)[:, :1]
    found = codec.decode(codec.encode(gray))
    assert found.shape == gray.shape
    colored = codec.autoencoder.decode(codec.autoencoder.encode(gray.expand(-1, 3, -1, -1))[0])
    torch.testing.assert_close(found, in_channels(colored, 1))


def test_a_published_autoencoder():
    """ANISODIFF_AUTOENCODER: a folder of published weights, such as a download of stabilityai/sd-vae-ft-mse."""
    folder = os.environ.get("ANISODIFF_AUTOENCODER")
    if folder is None:
        pytest.skip("NOT TESTED: no published autoencoder; set ANISODIFF_AUTOENCODER=FOLDER to test with one")
    autoencoder, side = open_autoencoder(folder), 128
    y, x = torch.meshgrid(*[torch.linspace(0, 1, side)] * 2, indexing="ij")
    picture = torch.stack([x, y, ((x - 0.5) ** 2 + (y - 0.5) ** 2 < 0.1).float()])[None]
    mean, _ = autoencoder.encode(picture)
    error = float((autoencoder.decode(mean) - picture).square().mean())
    assert error < 0.01  # 20 dB
