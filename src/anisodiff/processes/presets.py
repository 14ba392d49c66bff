"""Named parameters of the SPDE: the default, those of the paper, and those of its figures.

`anisotropic-gentle`, the default, is the best anisotropic setting of our studies (docs/results): the noise of `ve`,
with mild smoothing that decays while the noise is low. `heat` and `anisotropic` have the parameters of the paper with
the flux stencil and the exact or exponential step; `heat-paper` and `anisotropic-paper` also have its discretization
(paper stencil, tamed Euler–Maruyama). `cartoon` smooths the image alone, at low noise. `gallery-…` are the rows of
the first figure of the paper, `design-1a` to `design-4c` the panels of its design figure (128², T = 8).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from anisodiff import notation
from anisodiff.processes.config import KEYS, ProcessConfig, check_keys

_EULER = "tamed(dt=0.01)"


def ve(size: int, *, sigma_min: float = 0.01, sigma_max: float | None = None, T: float = 2.0) -> dict[str, Any]:
    """VE (Song et al. 2021; paper, Eq. 8): α2(t) = σ(t)·√(2 ln(σmax/σmin)/T), ∫_0^t α2² = σ(t)² − σmin².

    σmax is by default 50 up to 32² and proportional to the size above, as the norm of an image is (Song et al.: 50,
    90 and 380 at 32², 64² and 256²): the mutual information of U_T and U_0 is then about the same at every size.
    """
    low, high, horizon = _noise_levels(size, sigma_min, sigma_max, T)
    rate = math.sqrt(2.0 * (math.log(high) - math.log(low)) / horizon)
    return {
        "diffusivity": 0.0,
        "intensity": f"geometric({low * rate!r}, {high * rate!r})",
        "T": horizon,
        "step": "exact",
    }


def _noise_levels(
    size: int, sigma_min: float = 0.01, sigma_max: float | None = None, T: float = 2.0
) -> tuple[float, float, float]:
    """σmin, σmax and T."""
    sigma_max = 50.0 * max(1.0, size / 32) if sigma_max is None else sigma_max
    low, high = notation.number(sigma_min, "sigma_min"), notation.number(sigma_max, "sigma_max")
    horizon = notation.number(T, "T")
    for name, value, least in (("sigma_min", low, 0.0), ("sigma_max", high, low), ("T", horizon, 0.0)):
        if not least < value < math.inf:
            above = "sigma_min = " if name == "sigma_max" else ""
            raise ValueError(f"{name}: got {value:g}, expected a finite number above {above}{least:g}")
    return low, high, horizon


def anisotropic_gentle(size: int, **noise: Any) -> dict[str, Any]:
    """`ve` with early smoothing: α1 = 0.5 → 0.001, edge weights of the image (one window).

    λ1 is 0.05 up to 32² and inversely proportional to the size above, as the gradient of an edge per pixel is.
    """
    return {
        **ve(size, **noise),
        "diffusivity": "geometric(0.5, 0.001)",
        "drift_anisotropy": 0.05 / max(1.0, size / 32),
        "step": "exponential(windows=1)",
    }


def cartoon(size: int, *, smoothing: float | None = None, sigma_end: float = 0.1, **noise: Any) -> dict[str, Any]:
    """Perona–Malik smoothing of the image alone until the noise is σ = ``sigma_end``, then `ve`.

    ∫α1 = ``smoothing`` pixels², by default 10 up to 32² and proportional to the area above; it grows as t², so that
    almost nothing is smoothed at t_min. λ1 = 0.05.
    """
    (low, high, horizon), end = _noise_levels(size, **noise), notation.number(sigma_end, "sigma_end")
    if not 0 < end < high:
        raise ValueError(f"sigma_end must lie between 0 and sigma_max = {high:g}, got {end:g}")
    time = horizon * 0.5 * math.log1p((end / low) ** 2) / (math.log(high) - math.log(low))  # σ(t)² = σmin² + σend²
    total = 10.0 * max(1.0, size / 32) ** 2 if smoothing is None else notation.number(smoothing, "smoothing")
    return {
        **ve(size, **noise),
        "diffusivity": f"cutoff(total={total!r}, end={time!r}, r=2)",
        "drift_anisotropy": 0.05,
        "step": "signal(windows=1, steps=16)",
    }


def heat(size: int) -> dict[str, Any]:
    """*Ours (isotropic)* of the paper (Eq. 12): α1 = 0.5 → 2·size, α2 = 0.01 → 0.5."""
    return {
        "diffusivity": f"geometric(0.5, {2 * size})",
        "intensity": "geometric(0.01, 0.5)",
        "step": "exact",
    }


def anisotropic(size: int) -> dict[str, Any]:
    """*Ours (anisotropic)* of the paper (Eq. 9): α1 = 0.5 → 2·size, α2 = 0.01 → 2, λ1 = 0.025 → ∞ with k = ½."""
    return {
        "diffusivity": f"geometric(0.5, {2 * size})",
        "intensity": "geometric(0.01, 2)",
        "drift_anisotropy": "exponential(0.025, k=0.5)",
        "step": "exponential",
    }


def _paper(base: dict[str, Any]) -> dict[str, Any]:
    return {**base, "stencil": "paper", "step": _EULER}


# The paper gives no parameters for its first figure. Ours: T = 2, constant λ as in the caption, and strengths at
# which the five effects are visible at every image size.
_NOISE, _BLUR = "power(0, 0.7, 1)", 12.0
_GALLERY: dict[str, dict[str, Any]] = {
    "gallery-isotropic-noise": {"diffusivity": 0.0, "intensity": _NOISE, "step": "exact"},
    "gallery-anisotropic-noise": {
        "diffusivity": 0.0, "intensity": _NOISE, "noise_anisotropy": 0.05, "step": _EULER,
    },
    "gallery-isotropic-drift": {"diffusivity": _BLUR, "intensity": 0.0, "step": "exact"},
    "gallery-anisotropic-drift": {
        "diffusivity": _BLUR, "intensity": 0.0, "drift_anisotropy": 0.02, "step": "exponential(windows=40)",
    },
    "gallery-both": {
        "diffusivity": _BLUR, "intensity": _NOISE, "drift_anisotropy": 0.02, "noise_anisotropy": 0.05, "step": _EULER,
    },
}  # fmt: skip

_STRONG, _FINE = "geometric(0.5, 1000)", "exponential(windows=80)"
_DESIGN: dict[str, dict[str, Any]] = {
    "design-1a": {"diffusivity": 0.0, "intensity": 0.0, "step": "exact"},
    "design-1b": {"diffusivity": 1.0, "intensity": 0.0, "step": "exact"},
    "design-1c": {"diffusivity": _STRONG, "intensity": 0.0, "step": "exact"},
    "design-2a": {"diffusivity": 0.0, "intensity": 0.01, "step": "exact"},
    "design-2b": {"diffusivity": 0.0, "intensity": 0.1, "step": "exact"},
    "design-2c": {"diffusivity": 0.0, "intensity": 1.0, "step": "exact"},
    "design-3a": {"diffusivity": _STRONG, "intensity": 0.0, "step": "exact"},
    "design-3b": {"diffusivity": _STRONG, "intensity": 0.0, "drift_anisotropy": 1e-2, "step": _FINE},
    "design-3c": {"diffusivity": _STRONG, "intensity": 0.0, "drift_anisotropy": 1e-3, "step": _FINE},
    "design-4a": {"diffusivity": 0.0, "intensity": 1.0, "step": "exact"},
    "design-4b": {"diffusivity": 0.0, "intensity": 1.0, "noise_anisotropy": 1e-2, "step": _EULER},
    "design-4c": {"diffusivity": 0.0, "intensity": 1.0, "noise_anisotropy": 1e-3, "step": _EULER},
}  # fmt: skip

GALLERY = tuple(_GALLERY)
DESIGN = tuple(_DESIGN)
OWN_KEYS = ("sigma_min", "sigma_max", "smoothing", "sigma_end")
"""Parameters of some presets in addition to the keys of `ProcessConfig`."""
_OWN = {"ve": OWN_KEYS[:2], "anisotropic-gentle": OWN_KEYS[:2], "cartoon": OWN_KEYS}


def preset(name: str, size: int, **own: Any) -> dict[str, Any]:
    """Keys of a named process for images of longer side ``size``; ``own``: some of `OWN_KEYS`."""
    for key in own:
        having = [other for other, keys in _OWN.items() if key in (*keys, "T")]
        if name not in having:
            raise ValueError(f"{key}: only {' and '.join(having)} have it, not {name!r}")
    noisy: dict[str, Callable[..., dict[str, Any]]] = {
        "ve": ve, "anisotropic-gentle": anisotropic_gentle, "cartoon": cartoon,
    }  # fmt: skip
    if name in noisy:
        return noisy[name](size, **own)
    table = {
        "heat": heat(size),
        "anisotropic": anisotropic(size),
        "heat-paper": _paper(heat(size)),
        "anisotropic-paper": _paper(anisotropic(size)),
        **_GALLERY,
        **{key: {**value, "T": 8.0} for key, value in _DESIGN.items()},
    }
    if name not in table:
        raise ValueError(f"unknown process {name!r}; {notation.nearest(str(name), [*noisy, *table])}")
    return dict(table[name])


def configure(name: str, size: int, overrides: Mapping[str, Any], what: str) -> ProcessConfig:
    """A preset with keys overridden; ``what`` begins the error message for an unknown key."""
    keys = check_keys(overrides, (*KEYS, *OWN_KEYS), what)
    own = {key: keys.pop(key) for key in OWN_KEYS if key in keys}
    if name in _OWN and "T" in keys:
        own["T"] = keys["T"]
    return ProcessConfig(**{**preset(name, size, **own), **keys})
