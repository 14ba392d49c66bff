"""Cached latents: their law, their scale, restarts, and what damages them."""

import os
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from anisodiff.data import Loader
from anisodiff.data.latents import folder_of, open_latents, verify_latents
from anisodiff.data.loader import NOISE, flips, key
from anisodiff.latent import encoding
from anisodiff.latent.autoencoder import WEIGHTS, open_autoencoder
from anisodiff.latent.encoding import encode
from anisodiff.latent.reconstruction import reconstruct
from anisodiff.noise import KeyedNoise
from tests.latent.conftest import CHANNELS, pixels, write_autoencoder
from tests.support.children import together


def test_rows_are_the_posteriors_of_the_image_and_its_mirror(dataset, autoencoder):
    coder = open_autoencoder(autoencoder)
    latents = encode(dataset, coder)
    assert latents.rows.shape == (40, 2, 2, CHANNELS, 4, 8)
    image = dataset.first(5)
    for side, picture in enumerate((image, image.flip(-1))):
        for part, expected in enumerate(coder.encode(picture)):
            found = torch.from_numpy(latents.rows[:5, side, part].astype(np.float32))
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_states_have_mean_one_half_and_deviation_one_quarter(dataset, autoencoder):
    latents = encode(dataset, open_autoencoder(autoencoder))
    loader = Loader(dataset, latents=latents, batch=40, seed=0)
    states = torch.cat([loader.batch(k)[0] for k in range(20)]).double()
    torch.testing.assert_close(states.mean((0, 2, 3)), torch.full((3,), 0.5).double(), rtol=0, atol=0.01)
    torch.testing.assert_close(states.std((0, 2, 3)), torch.full((3,), 0.25).double(), rtol=0.03, atol=0)


def test_a_batch_is_a_draw_from_the_posterior_with_keyed_noise(dataset, autoencoder):
    latents = encode(dataset, open_autoencoder(autoencoder))
    loader = Loader(dataset, latents=latents, batch=8, seed=3)
    states, index = loader.batch(7)
    drawn = loader.draw(7)
    assert index.tolist() == drawn.index.tolist()
    rows = torch.from_numpy(latents.rows[drawn.index].astype(np.float32))
    side = torch.from_numpy(flips(3, drawn.epoch, drawn.index).astype(np.int64))
    chosen = rows[torch.arange(8), side]
    keys = torch.from_numpy(key(3, NOISE, drawn.epoch, drawn.index).view(np.int64))
    z = chosen[:, 0] + chosen[:, 1] * KeyedNoise(keys).normal(chosen[:, 0])
    torch.testing.assert_close(states, latents.scale.to_states(z), rtol=0, atol=0)
    halves = [Loader(dataset, latents=latents, batch=8, seed=3, rank=r, world=2).batch(7)[0] for r in range(2)]
    torch.testing.assert_close(torch.cat(halves), states, rtol=0, atol=0)


class Killed(Exception):
    pass


@pytest.mark.parametrize("garbage", [0, 5, 6144])
def test_a_killed_encoding_continues_with_the_same_bytes(dataset, autoencoder, monkeypatch, garbage):
    monkeypatch.setattr(encoding, "_BLOCK", 8)
    coder, seen = open_autoencoder(autoencoder), []
    whole = encode(dataset, coder)
    expected, meta = whole.rows.tobytes(), whole.meta
    folder = folder_of(dataset, coder.sha256)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()

    def kill(done, total):
        if done == 24:
            raise Killed

    with pytest.raises(Killed):
        encode(dataset, coder, kill)
    assert open_latents(dataset, coder.sha256) is None
    (partial,) = folder.parent.glob(".*.partial/latents.npy")
    with partial.open("ab") as file:
        file.write(b"x" * garbage)
    again = encode(dataset, coder, lambda done, total: seen.append(done))
    assert again.rows.tobytes() == expected
    assert again.meta == meta
    assert seen[0] == (24 if garbage == 6144 else 16)  # all but the last block stays
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]


def test_encoded_once(dataset, autoencoder, monkeypatch):
    coder = open_autoencoder(autoencoder)
    first = encode(dataset, coder)
    monkeypatch.setattr(encoding, "_write", lambda *_: pytest.fail("encoded again"))
    assert encode(dataset, coder).meta == first.meta


def test_latents_that_are_there_need_no_right_to_write(dataset, autoencoder, monkeypatch):
    coder = open_autoencoder(autoencoder)
    first = encode(dataset, coder)
    monkeypatch.setattr(encoding, "locked", lambda *_, **__: pytest.fail("a lock is a file"))
    assert encode(dataset, coder).meta == first.meta


def test_a_full_disk_is_noticed_before_hours_of_encoding(dataset, autoencoder, monkeypatch):
    coder = open_autoencoder(autoencoder)
    monkeypatch.setattr(encoding.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    monkeypatch.setattr(encoding, "_encoded", lambda *_: pytest.fail("encoded"))
    with pytest.raises(OSError, match=r"cannot write .*/latents/.*: 0.00 GB free, 0.00 GB needed"):
        encode(dataset, coder)


def test_of_two_processes_one_encodes(dataset, autoencoder, tmp_path, monkeypatch):
    coder, written = open_autoencoder(autoencoder), encoding._write

    def write(*given):
        (tmp_path / f"wrote-{os.getpid()}").touch()
        time.sleep(0.3)  # the other one is here by now
        written(*given)

    monkeypatch.setattr(encoding, "_write", write)
    together(lambda rank: encode(dataset, coder))
    assert len(list(tmp_path.glob("wrote-*"))) == 1
    verify_latents(open_latents(dataset, coder.sha256))


def test_damage_is_noticed(dataset, autoencoder):
    latents = encode(dataset, open_autoencoder(autoencoder))
    file = latents.path / "latents.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(ValueError, match="damaged or changed; remove"):
        verify_latents(open_latents(dataset, latents.meta["sha256"]))
    file.write_bytes(data[:-100])
    with pytest.raises(ValueError, match="truncated or damaged; remove"):
        open_latents(dataset, latents.meta["sha256"])


def test_latents_that_are_not_finite_are_not_kept(dataset, tmp_path, monkeypatch):
    coder = open_autoencoder(write_autoencoder(tmp_path / "ae"))
    encoded = type(coder).encode
    # the first image alone is good
    monkeypatch.setattr(
        type(coder), "encode", lambda self, x: encoded(self, x) if len(x) == 1 else (encoded(self, x)[0] / 0, None)
    )
    with pytest.raises(ValueError, match="not finite, or beyond float16"):
        encode(dataset, coder)
    assert open_latents(dataset, coder.sha256) is None
    assert list(folder_of(dataset, coder.sha256).parent.iterdir()) == []


def test_weights_that_make_no_image_are_refused_before_anything_is_cached(dataset, tmp_path):
    folder = write_autoencoder(tmp_path / "ae")
    weights = load_file(folder / WEIGHTS)
    weights["decoder.conv_out.weight"].fill_(3e38)  # finite, but not what they make
    save_file(weights, folder / WEIGHTS)
    with pytest.raises(ValueError, match="decoded images are not finite"):
        reconstruct(dataset, open_autoencoder(folder), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not folder_of(dataset, "0").parent.exists()  # reconstructions cache no latents
    with pytest.raises(ValueError, match="decoded images are not finite"):
        encode(dataset, open_autoencoder(folder))
    assert list(folder_of(dataset, "0").parent.iterdir()) == []
    weights["decoder.conv_out.weight"][0, 0, 0, 0] = torch.nan
    save_file(weights, folder / WEIGHTS)
    with pytest.raises(ValueError, match=r"decoder\.conv_out\.weight is not finite"):
        open_autoencoder(folder)


def test_a_few_reconstructions_encode_a_few_images(dataset, autoencoder, tmp_path):
    coder = open_autoencoder(autoencoder)
    few = reconstruct(dataset, coder, tmp_path / "few", 3)
    assert open_latents(dataset, coder.sha256) is None
    encode(dataset, coder)
    again = reconstruct(dataset, coder, tmp_path / "again", 3)  # from the cache
    assert few.psnr == pytest.approx(again.psnr, abs=0.05)


def test_reconstructions_are_restartable(dataset, autoencoder, tmp_path):
    coder, out = open_autoencoder(autoencoder), tmp_path / "out"
    whole = reconstruct(dataset, coder, out)
    assert (whole.images, whole.made) == (40, 40)
    images = torch.from_numpy(pixels()).float() / 255
    decoded = (coder.decode(coder.encode(images)[0]) * 255).round() / 255
    error = (decoded - images).double().square().flatten(1).mean(1)
    assert whole.psnr == pytest.approx(float(-10 * error.log10().mean()), abs=0.05)
    before = {file.name: file.read_bytes() for file in out.glob("*.png")}
    (out / "00000007.png").unlink()
    (out / "00000009.png").write_bytes(before["00000009.png"][:-9])
    again = reconstruct(dataset, coder, out)
    assert (again.made, again.psnr) == (2, whole.psnr)
    assert {file.name: file.read_bytes() for file in out.glob("*.png")} == before
    other = open_autoencoder(write_autoencoder(tmp_path / "other", channels=4))
    with pytest.raises(ValueError, match="holds other reconstructions: sha256 was"):
        reconstruct(dataset, other, out)
