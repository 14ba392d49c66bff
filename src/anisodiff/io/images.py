"""Photographs in and pictures out: files ↔ tensors [C, H, W] in [0, 1]."""

import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from anisodiff.data.geometry import to_channels


def load_photo(path: str | Path, size: int | None = None) -> Tensor:
    """An image file as float32 RGB [3, H, W] in [0, 1]; with ``size``, its center square resized to size².

    Orientation, transparency and 16-bit or float files follow the rules of `anisodiff.data.geometry`.
    """
    path = Path(path)
    if not path.exists():
        raise ValueError(f"no such file: {path}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; expected an image file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as opened:
                picture = to_channels(ImageOps.exif_transpose(opened), 3)
    except UnidentifiedImageError:
        raise ValueError(f"{path} is not an image that can be read") from None
    except Image.DecompressionBombWarning:
        raise ValueError(f"{path} has too many pixels; expected a photograph, at most about 90 megapixels") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be decoded ({error}); is it truncated?") from None
    return _to_tensor(picture, size, str(path))


def sample_photo(size: int | None = None) -> Tensor:
    """A photograph that is always at hand: Grace Hopper, 1984 (public domain), from matplotlib's sample data."""
    import matplotlib

    with Image.open(Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg") as opened:
        picture = opened.convert("RGB").crop((76, 20, 436, 380))
    return _to_tensor(picture, size, "the sample photograph")


def _to_tensor(picture: Image.Image, size: int | None, name: str) -> Tensor:
    width, height = picture.size
    if min(width, height) < 3:
        raise ValueError(f"{name} has {width}x{height} pixels; at least 3x3 are needed")
    if size is not None:
        if size < 3:
            raise ValueError(f"size must be at least 3 pixels, got {size}")
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        picture = picture.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.LANCZOS)
    pixels = torch.from_numpy(np.array(picture, dtype=np.uint8))
    return pixels.permute(2, 0, 1).float() / 255


def load_folder(folder: str | Path, size: int, most: int) -> Tensor:
    """Up to ``most`` images below ``folder`` (sorted by name), [N, 3, size, size]; files that fail are skipped."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"no such folder: {folder}")
    suffixes = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm"}
    found: list[Tensor] = []
    for path in sorted(p for p in folder.rglob("*") if p.suffix.lower() in suffixes):
        try:
            found.append(load_photo(path, size))
        except ValueError:
            continue
        if len(found) == most:
            break
    if len(found) < 2:
        raise ValueError(f"{folder} holds {len(found)} readable images; at least 2 are needed")
    return torch.stack(found)


def to_display(u: Tensor) -> tuple[np.ndarray, float]:
    """A state [C, H, W] as an RGB array [H, W, 3] in [0, 1], and the contrast it was shown with.

    States inside the range of images are shown as they are. Where noise has left it far behind, the contrast is
    lowered so that 98 % of the values are seen; the factor is returned, to be said beside the picture.
    """
    u = u.detach().double().cpu()
    low, high = np.percentile(u.numpy(), [1, 99])
    spread = max(float(high - low), 1e-12)
    contrast = 1.0 if spread < 1.6 else 1.0 / spread
    if contrast != 1.0:
        u = 0.5 + (u - u.median()) * contrast
    shown = u.clamp(0, 1).permute(1, 2, 0).numpy()
    return np.repeat(shown, 3, axis=2) if shown.shape[2] == 1 else shown[..., :3], contrast


def to_bytes(images: Tensor) -> Tensor:
    """Images [B, …] in [0, 1] → uint8, clipped and rounded to the nearest level; NaN and infinity are refused."""
    finite = torch.isfinite(images).flatten(1).all(dim=1)
    if not bool(finite.all()):
        raise ValueError(f"the model made NaN or infinite pixels in {int((~finite).sum())} of {len(images)} images")
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)
