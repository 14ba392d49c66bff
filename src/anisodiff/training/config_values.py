"""Values of a `TrainConfig` as they are written, checked and brought into one form; a mistake is one ValueError."""

import re
from collections.abc import Mapping
from typing import Any

from anisodiff import notation
from anisodiff.networks import own
from anisodiff.networks.config import MOST_CLASSES
from anisodiff.processes.config import check_keys

AUTO = ("auto",)
"""Classes that are to be read from the data."""
_LONGEST_NAME = 255
_SHA256 = re.compile("[0-9a-f]{64}")
_LATENT = ("autoencoder", "channels", "factor", "sha256", "scale", "mean", "std")


def named(value: Any, what: str, key: str, keys: tuple[str, ...] | None, names: tuple[str, ...]) -> dict[str, Any]:
    """A group of keys around a name, with the name known and the keys known; None: any."""
    group = {key: value} if isinstance(value, str) else value
    if not isinstance(group, Mapping):
        raise ValueError(f"{what}: got {value!r}, expected a name, or keys and values")
    group = check_keys(group, (key, *(group if keys is None else keys)), what)
    name, anything = group.get(key), keys is None
    if name not in names and not (anything and own.is_path(name)):
        other = "MODULE:CLASS of your own" * anything
        raise ValueError(f"{what}.{key}: unknown {name!r}; {notation.nearest(str(name), names, other)}")
    return group


def sequence(value: Any, name: str) -> list[Any]:
    """A list; a single value is a list of one."""
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return [value]
    raise ValueError(f"{name}: got {value!r}, expected a list")


def latent_of(value: Any, size: tuple[int, int]) -> dict[str, Any]:
    """The keys of an autoencoder, with the shape of its latents; nothing for pixels."""
    if not value or value == "none":
        return {}
    group: Any = {"autoencoder": value} if isinstance(value, str) else value
    if not isinstance(group, Mapping):
        raise ValueError(f"latent: got {value!r}, expected keys and values")
    keys: dict[str, Any] = dict(check_keys(group, _LATENT, "latent"))
    if not isinstance(keys.get("autoencoder"), str) or not {"channels", "factor"} <= set(keys):
        raise ValueError("latent: expected autoencoder, channels and factor; --latent NAME finds all three")
    keys = {
        **keys,
        **{key: notation.in_range(keys[key], f"latent.{key}", 1, whole=True) for key in ("channels", "factor")},
    }
    factor = keys["factor"]
    if keys["channels"] > 1024 or factor > 128:
        raise ValueError(f"latent: got {keys['channels']} channels, {factor}-fold; expected at most 1024, 128-fold")
    if any(side % factor or side // factor < 3 for side in size):
        near = " or ".join(str(max(3, size[0] // factor + more) * factor) for more in (0, 1))
        raise ValueError(
            f"size: got {size[0]}×{size[1]} with a {factor}-fold autoencoder, expected multiples of {factor} from "
            f"{3 * factor} on, such as {near}"
        )
    code = keys.get("sha256")
    if code is not None and not (isinstance(code, str) and _SHA256.fullmatch(code)):
        raise ValueError(f"latent.sha256: got {str(code)[:80]!r}, expected 64 hexadecimal digits")
    for key, count in (("mean", keys["channels"]), ("std", keys["channels"]), ("scale", 2)):
        if key in keys:
            found = [notation.in_range(x, f"latent.{key}", -1e6, 1e6) for x in sequence(keys[key], f"latent.{key}")]
            if len(found) != count or (key == "std" and min(found) <= 0):
                raise ValueError(
                    f"latent.{key}: got {found}, expected {count} numbers{', all positive' * (key == 'std')}"
                )
            keys[key] = found
    return keys


def classes_of(value: Any) -> tuple[str, ...]:
    """Names of classes; ``auto``, or nothing for none."""
    names = tuple(str(name) for name in sequence(value, "classes"))
    if names in ((), AUTO, ("none",)):
        return () if names == ("none",) else names
    if len(names) < 2:
        raise ValueError(f"classes: got {names[0]!r} alone, expected auto, or the names of two classes or more")
    if len(names) > MOST_CLASSES:
        raise ValueError(f"classes: got {len(names)}, expected {MOST_CLASSES} at most")
    for name in names:  # they are printed, and part of the names of files
        if not name.isprintable() or not 0 < len(name) <= _LONGEST_NAME:
            raise ValueError(
                f"classes: got {name[:60]!r}, expected 1 to {_LONGEST_NAME} printable characters; rename it"
            )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"classes: {twice!r} is there twice; expected a name for each class")
    return names
