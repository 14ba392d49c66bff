"""The process designer: a setting as the page has it, its trajectory, its spectrum, its verdict, and its exports.

**Spectrum.** Two paths a, b from the picture with independent noise. In a band of DCT modes, about mid-gray,

    S = mean a·b        N = ½ mean (a − b)²

Where that drowns in the noise, S = g²D instead, the part that is linear in the picture x: g = mean x·(a + b)/2D,
D = mean x². S/N is not told from zero below 3/(modes and channels).

**Noise level.** ln(σ/σ_d) of the white noise that leaves as much information, Σ ln(1 + D/σ²) = Σ ln(1 + S/N), by the
rule of the models (`models.base.equivalent_level`). A second setting is shown at the times of equal level.
"""

import base64
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from anisodiff import notation
from anisodiff.dct import band_sums, dct2, radial_bands
from anisodiff.diagnosis import diagnose, snr_threshold
from anisodiff.io.figures import caption, save_animation, save_figure, trajectory_figure
from anisodiff.models.base import equivalent_level
from anisodiff.noise import KeyedNoise, white
from anisodiff.processes import Process
from anisodiff.processes.base import EquationProcess
from anisodiff.processes.config import KEYS, STEPS
from anisodiff.processes.presets import preset
from anisodiff.registry import DEFAULT_PROCESS, FIGURES, PRESETS, build_process
from anisodiff.schedules import Constant, transition
from anisodiff.stencils import STENCILS
from anisodiff.studio.pictures import strip
from anisodiff.studio.queue import Job
from anisodiff.tensors import interpolate

COEFFICIENTS = ("diffusivity", "intensity", "drift_anisotropy", "noise_anisotropy")
SIZES = (32, 48, 64, 96, 128)
FRAMES, BANDS = 16, 8
CROPS, REPLICATES = 32, 24
"""Of the verdict: crops of the picture, and runs of a few of them."""
MOST_NODES = 1000
"""Time steps of a path; more would keep everybody waiting."""


class Watched(KeyedNoise):
    """Noise of one stream, which is fast, and is drawn only while somebody waits for the work."""

    def __init__(self, count: int, seed: int, check: Callable[[], None]) -> None:
        super().__init__(torch.zeros(count, dtype=torch.int64))
        self._check, self._stream_of_all = check, torch.Generator().manual_seed(seed)

    def normal(self, like: Tensor) -> Tensor:
        """Standard normals in the shape of ``like``."""
        self._check()
        return white(like, self._stream_of_all)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A preset with keys changed, at a size; only keys that differ from the preset's are kept."""

    preset: str
    size: int
    changes: dict[str, Any]

    @classmethod
    def of(cls, name: str, size: int, keys: dict[str, Any]) -> "Setting":
        """From all keys, as the page sends them."""
        if name not in (*PRESETS, *FIGURES):
            raise ValueError(f"unknown preset {name!r}; {notation.nearest(str(name), (*PRESETS, *FIGURES))}")
        own = plain_keys(name, size)
        unknown = [key for key in keys if key not in KEYS]
        if unknown:
            raise ValueError(f"unknown key {unknown[0]!r}; {notation.nearest(unknown[0], KEYS)}")
        return cls(preset=name, size=size, changes={k: v for k, v in keys.items() if own[k] != _plain(k, v)})

    def build(self) -> Process:
        """The process; contradictions and endless simulations are refused."""
        built = build_process(self.preset, self.size, self.changes, "the setting")
        step = getattr(built, "step", None)
        count = 1 if step is None else len(step.jumps(built.equation)) - 1  # type: ignore[attr-defined]
        if count > MOST_NODES:
            raise ValueError(f"{step} takes {count:,} time steps; the studio shows at most {MOST_NODES:,}")
        return built

    def yaml(self) -> str:
        """A file for ``anisodiff train --config``."""
        head = "# anisodiff train --config process.yaml --data photos --output run\n"
        group = {"preset": self.preset, **self.changes}
        text = yaml.safe_dump({"size": [self.size, self.size], "process": group}, sort_keys=False, allow_unicode=True)
        return head + text

    def command(self, photo: str | None, seed: int) -> str:
        """The command that draws what `export` does; ``photo`` is None for the shipped photograph."""
        given = [] if photo is None else [photo]
        words = ["anisodiff", "forward", *given, "--process", self.preset, "--size", str(self.size)]
        words += ["--seed", str(seed)] if seed else []
        for key, value in self.changes.items():
            words += ["--set", f"{key}={value}"]
        return shlex.join(words)

    def python(self) -> str:
        """The line of Python that builds it."""
        keys = "".join(f", {key}={value!r}" for key, value in self.changes.items())
        return f"anisodiff.process({self.preset!r}, size={self.size}{keys})"


def _plain(key: str, value: Any) -> Any:
    """A value of a key in the one form in which two of them can be compared."""
    if key in COEFFICIENTS:
        return str(transition(value, key))
    if key in ("T", "correlation_length"):
        return notation.number(value, key)
    if key == "step" and str(value) != "exact":
        return str(notation.read(str(value), STEPS, "step"))
    return str(value)


def plain_keys(name: str, size: int) -> dict[str, Any]:
    """All keys of a preset, in the form of `_plain`."""
    defaults = {"drift_anisotropy": "infinite", "noise_anisotropy": "infinite", "correlation_length": 0.0, "T": 2.0}
    held = {**defaults, "stencil": "flux", "step": "exponential", "condition": "none", **preset(name, size)}
    return {key: _plain(key, held[key]) for key in KEYS}


def catalog(size: int) -> dict[str, Any]:
    """What the page offers at a size: presets with all their keys, stencils, steps."""
    presets = {name: described(plain_keys(name, size)) for name in (*PRESETS, *FIGURES)}
    return {
        "presets": presets, "default": DEFAULT_PROCESS, "stencils": list(STENCILS), "sizes": list(SIZES),
        "steps": ["exact", "exponential", "exponential(windows=1)", "signal", "tamed(dt=0.01)"], "frames": FRAMES,
    }  # fmt: skip


def described(keys: dict[str, Any]) -> dict[str, Any]:
    """Keys with the coefficients taken apart: kind and numbers."""
    return {**keys, "curves": {name: _curve(keys[name]) for name in COEFFICIENTS}}


def _curve(text: str) -> dict[str, Any]:
    found = transition(text)
    kind = "constant" if isinstance(found, Constant) else text.partition("(")[0]
    return {"kind": kind, "values": asdict(found)}


def times_of(process: Process, count: int = FRAMES) -> list[float]:
    """Even times 0 … T."""
    return [process.T * k / (count - 1) for k in range(count)]


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """One path of a picture, with what two of them tell of the spectrum."""

    times: list[float]
    states: list[Tensor]
    """[C, H, W] each."""
    snr: list[list[float | None]]
    """Per time and band; None where there is no noise yet."""
    least: list[float]
    """Per band: the ratio from which a signal can be told from zero."""
    level: list[float | None]
    """Noise level at every time."""


def trajectory(
    process: Process, image: Tensor, seed: int, times: Sequence[float], check: Callable[[], None]
) -> Trajectory:
    """Of an image [C, H, W] in [0, 1]. Without noise one path is enough: a second would be the same."""
    paths = 1 if isinstance(process, EquationProcess) and str(process.equation.intensity) == "0" else 2
    pairs = finite(process.path(image.expand(paths, *image.shape), times, Watched(paths, seed, check)))
    snr, level = [], []
    band, modes = _bands(image)
    source, count = dct2(image.double() - 0.5), len(image) * modes
    power = band_sums(source.square().mean(0), band, BANDS) / modes
    for pair in pairs:
        a, b = dct2(pair.double() - 0.5).expand(2, *image.shape)
        both = band_sums((a * b).mean(0), band, BANDS) / modes
        spread = band_sums(0.5 * (a - b).square().mean(0), band, BANDS) / modes
        link = band_sums((source * (a + b) / 2).mean(0), band, BANDS) / modes
        linear = link.square() / power.clamp(min=1e-300) - spread / (2 * count)
        signal = torch.where(both > 10 * (both + spread) / count.sqrt(), both, linear)
        quiet = spread <= 1e-12 * power.clamp(min=1e-12)
        ratio = signal.clamp(min=0) / spread.clamp(min=1e-300)
        snr.append([None if q else float(r) for r, q in zip(ratio, quiet)])
        known = (modes * torch.log1p(torch.where(ratio > 3 / count, ratio, 0.0))).sum()
        level.append(None if bool(quiet.any()) else float(equivalent_level(known, power, modes)))
    least = [3 / float(n) for n in count]
    return Trajectory(times=list(times), states=[pair[0] for pair in pairs], snr=snr, least=least, level=level)


def finite(states: list[Tensor]) -> list[Tensor]:
    """The states, where all of them are numbers."""
    if not all(bool(u.isfinite().all()) for u in states):
        raise ValueError("the states are not finite: these coefficients are too extreme for this step")
    return states


def _bands(image: Tensor) -> tuple[Tensor, Tensor]:
    band = radial_bands(image.shape[-2], image.shape[-1], BANDS)
    return band, band_sums(torch.ones(band.shape, dtype=torch.float64), band, BANDS)


def matched(found: Trajectory, wanted: Sequence[float | None]) -> list[float]:
    """The times at which a process has the noise levels ``wanted``; the nearest it has, and 0 for none."""
    curve = [(level, t) for level, t in zip(found.level, found.times) if level is not None]
    if not curve:
        return [0.0 for _ in wanted]
    levels, ends = torch.tensor(curve if len(curve) > 1 else 2 * curve, dtype=torch.float64).unbind(1)
    levels = torch.cummax(levels, 0).values.contiguous()
    level = torch.tensor([0.0 if one is None else one for one in wanted], dtype=torch.float64)
    at_level = interpolate(level, levels, ends.contiguous()).tolist()
    times = [0.0 if one is None else time for one, time in zip(wanted, at_level)]
    return [max(times[: k + 1]) for k in range(len(times))]


def show(
    job: Job, setting: Setting, other: Setting | None, image: Tensor, seed: int, photo: str | None = None
) -> None:
    """Emit the trajectory of a setting, then that of the other at the times of equal noise level."""
    process = setting.build()
    first = trajectory(process, image, seed, times_of(process), job.check)
    job.emit(_event("a", setting, process, first) | {"command": setting.command(photo, seed)})
    if other is None:
        return
    process = other.build()
    pilot = trajectory(process, image, seed, times_of(process), job.check)
    second = trajectory(process, image, seed, matched(pilot, first.level), job.check)
    job.emit(_event("b", other, process, second))


def _event(which: str, setting: Setting, process: Process, found: Trajectory) -> dict[str, Any]:
    frames, contrast = strip(found.states)
    loud = [k for k, (ratio, least) in enumerate(zip(found.snr[-1], found.least)) if _heard(ratio, least)]
    return {
        "kind": "trajectory", "which": which, "frames": frames, "contrast": contrast, "times": found.times,
        "snr": found.snr, "least": found.least, "level": found.level, "loud": loud, "caption": caption(process),
        "python": setting.python(), "changes": setting.changes, "yaml": setting.yaml(),
    }  # fmt: skip


def _heard(ratio: float | None, least: float) -> bool:
    return ratio is None or ratio > max(least, snr_threshold(10**6))


def verdict(job: Job, setting: Setting, image: Tensor, seed: int) -> None:
    """Emit what `anisodiff diagnose` says of crops of the picture [3, 2·size, 2·size]."""
    process = setting.build()
    found = diagnose(
        process, crops(image, setting.size, CROPS, seed), seed=seed, replicates=REPLICATES, progress=job.progress
    )
    job.emit({"kind": "verdict", **found.as_dict(), "loud_from": snr_threshold(found.images)})


def crops(image: Tensor, size: int, count: int, seed: int) -> Tensor:
    """Crops [count, C, size, size] of an image [C, H, W], mirrored or not, from size² to all of it."""
    draw = torch.Generator().manual_seed(seed)
    height, width = image.shape[-2:]
    found = []
    for k in range(count):
        side = int(torch.randint(size, min(height, width) + 1, (), generator=draw))
        top, left = (int(torch.randint(0, n - side + 1, (), generator=draw)) for n in (height, width))
        cut = image[None, :, top : top + side, left : left + side]
        small = torch.nn.functional.interpolate(cut, size=(size, size), mode="area")[0]
        found.append(small.flip(-1) if k % 2 else small)
    return torch.stack(found).clamp(0, 1)


def export(setting: Setting, image: Tensor, seed: int, kind: str, check: Callable[[], None]) -> bytes:
    """The trajectory as a figure (png) or an animation (gif)."""
    process = setting.build()
    times = times_of(process, 6 if kind == "png" else 40)
    states = [one[0] for one in finite(process.path(image[None], times, Watched(1, seed, check)))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"process.{kind}"
        if kind == "png":
            keys = ", ".join(f"{key} = {value}" for key, value in setting.changes.items())
            title = f"{setting.preset} with {keys}" if keys else setting.preset
            save_figure(trajectory_figure(process, title, states, times), path)
        else:
            save_animation(states, path)
        return path.read_bytes()


def encoded(data: bytes) -> str:
    """A file as text."""
    return base64.b64encode(data).decode()
