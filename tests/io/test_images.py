"""Any picture file → uint8 [C, H, W]: the stated rules, one by one."""

import io
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anisodiff.io.images import DecodeError, Fit, channels_of, decode, load_photo, open_image, sample_photo

RGB4 = Fit(size=(4, 4), channels=3)
GRAY4 = Fit(size=(4, 4), channels=1)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def through_file(image: Image.Image, kind: str, **options: object) -> Image.Image:
    return decode(lambda: open_image(encoded(image, kind, **options)))


def test_right_size_and_mode_is_copied_exactly() -> None:
    values = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    got = Fit(size=(5, 7), channels=3)(Image.fromarray(values))
    np.testing.assert_array_equal(got, values.transpose(2, 0, 1))
    assert got.flags.c_contiguous


@pytest.mark.parametrize(("width", "height"), [(40, 20), (20, 40)])
def test_center_is_cropped_to_the_aspect_before_resizing(width: int, height: int) -> None:
    """White sides outside the center square must leave no trace."""
    values = np.full((height, width), 255, np.uint8)
    values[height // 2 - 10 : height // 2 + 10, width // 2 - 10 : width // 2 + 10] = 7
    assert np.all(Fit(size=(10, 10), channels=1)(Image.fromarray(values)) == 7)


def test_aspect_of_a_non_square_target() -> None:
    values = np.full((30, 30), 255, np.uint8)
    values[10:20] = 9  # the centered window of aspect 1:3
    assert np.all(Fit(size=(5, 15), channels=1)(Image.fromarray(values)) == 9)


def test_constants_stay() -> None:
    assert np.all(GRAY4(Image.fromarray(np.full((37, 53), 131, np.uint8))) == 131)


def test_shrinking_does_not_alias() -> None:
    stripes = np.tile(np.array([0, 255], np.uint8), (64, 32))
    got = Fit(size=(16, 16), channels=1)(Image.fromarray(stripes))[0]
    assert np.abs(got[:, 2:-2].astype(int) - 127).max() <= 2


def test_own_crop_comes_first() -> None:
    values = np.full((218, 178), 255, np.uint8)
    values[39:179, 19:159] = 3
    fit = Fit(size=(64, 64), channels=1, crop=140)
    assert np.all(fit(Image.fromarray(values)) == 3)
    with pytest.raises(DecodeError, match="218×100 pixels, expected at least 140×140"):
        fit(Image.fromarray(values[:, :100]))


@pytest.mark.parametrize("deep", [0, 128, 32768, 65535])
def test_sixteen_bit_gray(deep: int) -> None:
    image = through_file(Image.fromarray(np.full((4, 4), deep, np.uint16)), "PNG")
    assert channels_of(image) == 1
    assert np.all(GRAY4(image) == round(deep * 255 / 65535))
    assert np.all(RGB4(image) == round(deep * 255 / 65535))


def test_float_gray_and_its_range() -> None:
    image = through_file(Image.fromarray(np.full((4, 4), 0.2, np.float32)), "TIFF")
    assert np.all(GRAY4(image) == 51)
    for bad in (2.0, -0.1, np.nan):
        with pytest.raises(DecodeError, match=r"expected \[0, 1\]"):
            GRAY4(Image.fromarray(np.full((4, 4), bad, np.float32)))


def test_transparency_is_laid_over_white() -> None:
    rgba = Image.new("RGBA", (4, 4), (200, 0, 0, 0))
    assert np.all(RGB4(through_file(rgba, "PNG")) == 255)
    half = RGB4(Image.new("RGBA", (4, 4), (255, 0, 0, 128)))
    np.testing.assert_allclose(half[:, 0, 0].astype(int), [255, 127, 127], atol=1)
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([10, 20, 30, 40, 50, 60])
    assert np.all(RGB4(through_file(palette, "PNG", transparency=1)) == 255)
    assert RGB4(through_file(palette, "PNG"))[:, 0, 0].tolist() == [40, 50, 60]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_common_mode_has_a_meaning(mode: str, channels: int) -> None:
    image = Image.new("RGB", (6, 4), (255, 255, 255)).convert(mode)
    got = Fit(size=(4, 4), channels=channels)(image)
    assert got.shape == (channels, 4, 4)
    assert got.min() >= 250


def test_luma_weights() -> None:
    got = GRAY4(Image.new("RGB", (4, 4), (255, 100, 50)))[0, 0, 0]
    assert abs(int(got) - (0.299 * 255 + 0.587 * 100 + 0.114 * 50)) <= 1


def test_orientation_of_the_file_is_applied() -> None:
    values = np.zeros((4, 8, 3), np.uint8)
    values[:, :4] = 255  # left half white
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° clockwise: left becomes top
    got = Fit(size=(8, 4), channels=1)(through_file(Image.fromarray(values), "PNG", exif=exif))[0]
    assert got[0].min() == 255
    assert got[-1].max() == 0


def test_bad_targets() -> None:
    with pytest.raises(ValueError, match="got size 2×8"):
        Fit(size=(2, 8), channels=3)
    with pytest.raises(ValueError, match="got channels=4"):
        Fit(size=(8, 8), channels=4)


def test_photos_of_any_mode_look_as_they_should(tmp_path: Path) -> None:
    """Orientation, transparency and 16 bits: a dark image must not become white, nor a hidden color visible."""
    Image.fromarray(np.full((8, 8), 32768, dtype=np.uint16)).save(tmp_path / "deep.png")
    assert load_photo(tmp_path / "deep.png").mean().item() == pytest.approx(0.5, abs=0.01)
    clear = np.zeros((8, 8, 4), dtype=np.uint8)
    clear[..., 0] = 255
    Image.fromarray(clear).save(tmp_path / "clear.png")
    assert (load_photo(tmp_path / "clear.png") == 1.0).all()
    tall = np.zeros((12, 6, 3), dtype=np.uint8)
    tall[:6] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90°
    Image.fromarray(tall).save(tmp_path / "turned.jpg", exif=exif, quality=95)
    turned = load_photo(tmp_path / "turned.jpg")
    assert turned.shape == (3, 6, 12)
    assert turned[..., 8:].mean() > 0.9 > 0.1 > turned[..., :4].mean()


def test_the_sample_photo_is_cut_like_any_other() -> None:
    whole, small = sample_photo(), sample_photo(24)
    assert whole.shape == (3, 360, 360)
    pixels = (whole * 255).round().byte().permute(1, 2, 0).numpy()
    expected = Image.fromarray(pixels).resize((24, 24), Image.Resampling.LANCZOS)
    np.testing.assert_array_equal((small * 255).round().byte().permute(1, 2, 0).numpy(), np.asarray(expected))


@pytest.mark.parametrize("side", [8000, 9500, 14000])  # Pillow warns of the second and refuses the third
def test_the_limit_of_pixels(side: int) -> None:
    data = encoded(Image.new("1", (side, side)), "PNG")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if side < 8192:
            assert GRAY4(decode(lambda: open_image(data))).shape == (1, 4, 4)
        else:
            with pytest.raises(DecodeError, match="more than 67 megapixels"):
                decode(lambda: open_image(data))


def test_only_listed_formats_are_opened() -> None:
    for kind in ("EPS", "ICO", "PCX", "PDF"):
        data = encoded(Image.new("RGB", (16, 16)), kind)
        with pytest.raises(DecodeError, match=r"not an image; expected PNG, JPEG"):
            open_image(data)


def test_a_damaged_exif_block_loses_no_picture() -> None:
    values = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        image = through_file(Image.fromarray(values), "PNG", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff")
    np.testing.assert_array_equal(RGB4(image), values.transpose(2, 0, 1))


def test_no_image_file_is_refused_in_one_line(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), 7, np.float32)).save(tmp_path / "bright.tif")
    for name, says in (("none.png", "no such file"), ("", "is a folder"), ("bright.tif", r"cannot be used: mode F")):
        with pytest.raises(ValueError, match=says) as caught:
            load_photo(tmp_path / name, 8)
        assert "\n" not in str(caught.value)
