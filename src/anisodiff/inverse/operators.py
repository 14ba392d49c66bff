"""Known linear operators A of an inverse problem y = A x + σ n, n white.

| name | A | diagonal |
|---|---|---|
| `inpainting` | pixels outside a mask | in pixels |
| `super-resolution` | means of ``factor``×``factor`` blocks | A C Aᵀ in the DCT of the small image |
| `deblurring` | convolution, Gaussian or box, reflecting boundary | in the DCT |
| `colorization` | mean of the channels | A C Aᵀ in the DCT |

C is a covariance of images that is diagonal in the DCT (`covariance`). (A C Aᵀ + σ²)⁻¹ is then exact, but for
`inpainting` with a C that is not white: there it is found by conjugate gradients.

A measurement of `inpainting` has the shape of the image and is zero where nothing was measured.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from anisodiff import notation
from anisodiff.dct import dct_matrix
from anisodiff.inverse.covariance import SpectralCovariance

Shape = tuple[int, int, int]
"""Channels, height, width."""
_ROUNDS = 200
_TINY = 1e-9


@dataclass(frozen=True, kw_only=True)
class LinearOperator(ABC):
    """Contract of an operator; subclasses are frozen dataclasses of options, for images of any size they fit."""

    name: ClassVar[str]

    @abstractmethod
    def measured(self, shape: Shape) -> Shape:
        """The shape of A x for an image of ``shape``; one that does not fit is refused."""

    @abstractmethod
    def apply(self, x: Tensor) -> Tensor:
        """A x of images [B, C, H, W]."""

    @abstractmethod
    def adjoint(self, y: Tensor) -> Tensor:
        """Aᵀ y."""

    @abstractmethod
    def plain(self, y: Tensor) -> Tensor:
        """A baseline image [B, C, H, W] from ``y`` alone: no model, no spectrum."""

    def restrict(self, y: Tensor) -> Tensor:
        """A measurement [B, …] without what A does not see."""
        return y

    def count(self, y: Tensor) -> int:
        """Numbers that were measured of one image."""
        return y[0].numel()

    def solve(self, y: Tensor, covariance: SpectralCovariance, noise: float) -> Tensor:
        """(A C Aᵀ + σ²)⁻¹ y with σ = ``noise``; directions that are neither seen nor noisy give 0."""
        if math.isinf(noise):
            return torch.zeros_like(y)
        return self._solve(y, covariance, noise**2)

    def _solve(self, y: Tensor, covariance: SpectralCovariance, variance: float) -> Tensor:
        """By conjugate gradients. A sample stops by its own residual: its result depends on no other."""
        limit = torch.finfo(y.dtype).eps ** 0.5 * _norm(y)
        solution, residual = torch.zeros_like(y), y
        direction, square = residual, residual.square().sum((1, 2, 3), keepdim=True)
        for _ in range(_ROUNDS):
            going = square.sqrt() > limit
            if not bool(going.any()):
                break
            image = self.apply(covariance.apply(self.adjoint(direction))) + variance * direction
            curve = (direction * image).sum((1, 2, 3), keepdim=True)
            step = torch.where(going, square / curve.clamp(min=torch.finfo(y.dtype).tiny), 0.0)
            solution, residual = solution + step * direction, residual - step * image
            new = torch.where(going, residual.square().sum((1, 2, 3), keepdim=True), square)
            direction = residual + torch.where(going, new / square, 0.0) * direction
            square = new
        return solution

    def __str__(self) -> str:
        return notation.write(self.name, self)


def _norm(y: Tensor) -> Tensor:
    return y.square().sum((1, 2, 3), keepdim=True).sqrt()


def _divided(y: Tensor, power: Tensor) -> Tensor:
    """y/power where there is any power to speak of."""
    seen = power > _TINY * power.amax()
    return torch.where(seen, y / torch.where(seen, power, 1.0), 0.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Inpainting(LinearOperator):
    """``inpainting``: a centered square hole, a share of pixels at random, or a mask, True where nothing is known."""

    name: ClassVar[str] = "inpainting"

    hole: int = field(default=0, metadata={"unless_default": True})
    """Side of a centered square, in pixels."""
    missing: float = field(default=0.0, metadata={"unless_default": True})
    """Share of pixels, drawn with ``seed``."""
    seed: int = field(default=0, metadata={"unless_default": True})
    mask: Tensor | None = field(default=None, metadata={"identity": False})
    """Bool [1, H, W], True: unknown, as in editing; not in the notation."""

    def __post_init__(self) -> None:
        notation.check_number(self, "hole", 0, 1 << 16, whole=True, what="inpainting: hole")
        notation.check_number(self, "seed", 0, 1 << 31, whole=True, what="inpainting: seed")
        missing = notation.number(self.missing, "inpainting: missing")
        if not 0 <= missing < 1:
            raise ValueError(f"inpainting: missing is a share of the pixels in [0, 1), got {missing:g}")
        object.__setattr__(self, "missing", missing)
        if self.mask is not None and (not isinstance(self.mask, Tensor) or self.mask.dtype != torch.bool):
            raise ValueError("inpainting: a mask is given as a bool tensor or with --mask FILE, not in the text")
        if (self.hole > 0) + (missing > 0) + (self.mask is not None) != 1:
            raise ValueError("inpainting needs one of hole=SIDE, missing=SHARE, or a mask (--mask FILE)")

    def unknown(self, height: int, width: int) -> Tensor:
        """Bool [1, H, W]."""
        if self.mask is not None:
            if self.mask.shape != (1, height, width):
                raise ValueError(f"inpainting: mask {list(self.mask.shape)}, expected {[1, height, width]}")
            return self.mask
        if self.hole:
            if self.hole >= min(height, width):
                raise ValueError(f"inpainting: a hole of {self.hole} leaves nothing of {height}×{width} pixels")
            mask = torch.zeros(1, height, width, dtype=torch.bool)
            top, left = (height - self.hole) // 2, (width - self.hole) // 2
            mask[:, top : top + self.hole, left : left + self.hole] = True
            return mask
        draw = torch.rand(height * width, generator=torch.Generator().manual_seed(self.seed), dtype=torch.float64)
        order = draw.argsort(stable=True)
        mask = torch.zeros(height * width, dtype=torch.bool)
        mask[order[: round(self.missing * height * width)]] = True
        return mask.reshape(1, height, width)

    def measured(self, shape: Shape) -> Shape:
        self.unknown(*shape[1:])
        return shape

    def apply(self, x: Tensor) -> Tensor:
        return x * ~self.unknown(*x.shape[-2:]).to(x.device)

    def adjoint(self, y: Tensor) -> Tensor:
        return self.apply(y)

    def restrict(self, y: Tensor) -> Tensor:
        return self.apply(y)

    def plain(self, y: Tensor) -> Tensor:
        """The mean color of the known pixels in all unknown ones."""
        unknown = self.unknown(*y.shape[-2:]).to(y.device)
        mean = self.apply(y).sum((-2, -1), keepdim=True) / (~unknown).sum().clamp(min=1)
        return torch.where(unknown, mean, y)

    def count(self, y: Tensor) -> int:
        return y.shape[1] * int((~self.unknown(*y.shape[-2:])).sum())

    def _solve(self, y: Tensor, covariance: SpectralCovariance, variance: float) -> Tensor:
        y = self.restrict(y)
        if covariance.white:
            return y / (covariance.variance + variance)
        return super()._solve(y, covariance, variance)


@dataclass(frozen=True, kw_only=True)
class SuperResolution(LinearOperator):
    """``super-resolution``: means of blocks. A C Aᵀ is diagonal in the DCT of the small image: aliases add up."""

    name: ClassVar[str] = "super-resolution"

    factor: int = 4

    def __post_init__(self) -> None:
        notation.check_number(self, "factor", 2, 64, whole=True, what="super-resolution: factor")

    def measured(self, shape: Shape) -> Shape:
        channels, height, width = shape
        if height % self.factor or width % self.factor:
            raise ValueError(f"super-resolution: {height}×{width} pixels are no multiple of factor={self.factor}")
        return channels, height // self.factor, width // self.factor

    def apply(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, self.factor)

    def adjoint(self, y: Tensor) -> Tensor:
        return y.repeat_interleave(self.factor, -2).repeat_interleave(self.factor, -1) / self.factor**2

    def plain(self, y: Tensor) -> Tensor:
        """Bicubic."""
        return F.interpolate(y, scale_factor=float(self.factor), mode="bicubic", align_corners=False).clamp(0, 1)

    def _solve(self, y: Tensor, covariance: SpectralCovariance, variance: float) -> Tensor:
        size = [n * self.factor for n in y.shape[-2:]]
        rows, columns = (self._modes(n, y) for n in size)
        power = rows.square() @ covariance.variance.to(y).expand(-1, -1, *size) @ columns.square().mT
        return covariance.field(_divided(covariance.modes(y), power + variance))

    def _modes(self, n: int, like: Tensor) -> Tensor:
        """The mean of blocks along one axis, from DCT modes to DCT modes, [n/factor, n]; one number a column."""
        block = torch.eye(n // self.factor, dtype=torch.float64).repeat_interleave(self.factor, 1) / self.factor
        cpu = torch.device("cpu")
        small, large = (dct_matrix(k, torch.float64, cpu) for k in (n // self.factor, n))
        return (small @ block @ large.mT).to(like)


KERNELS = ("gaussian", "box")


@dataclass(frozen=True, kw_only=True)
class Deblurring(LinearOperator):
    """``deblurring``: a convolution Â = Π_axis Σ_j w_j cos(ωj), ω = πk/n; reflecting boundary."""

    name: ClassVar[str] = "deblurring"

    width: float = 1.5
    """Standard deviation of the Gaussian, or the odd side of the box, in pixels."""
    kernel: str = "gaussian"

    def __post_init__(self) -> None:
        if self.kernel not in KERNELS:
            raise ValueError(f"deblurring: unknown kernel {self.kernel!r}; {notation.nearest(self.kernel, KERNELS)}")
        width = notation.number(self.width, "deblurring: width")
        if not 0.1 <= width <= 100 or (self.kernel == "box" and width % 2 != 1):
            expected = "an odd number of pixels up to 99" if self.kernel == "box" else "0.1 to 100 pixels"
            raise ValueError(f"deblurring: width of a {self.kernel} must be {expected}, got {width:g}")
        object.__setattr__(self, "width", width)

    def measured(self, shape: Shape) -> Shape:
        return shape

    def response(self, like: Tensor) -> Tensor:
        """Â [H, W], in the DCT; place and precision of ``like``."""
        rows, columns = (self._axis(n) for n in like.shape[-2:])
        return (rows[:, None] * columns).to(like)

    def _axis(self, n: int) -> Tensor:
        reach = int(self.width) // 2 if self.kernel == "box" else math.ceil(4 * self.width)
        j = torch.arange(-reach, reach + 1, dtype=torch.float64)
        weight = torch.ones_like(j) if self.kernel == "box" else torch.exp(-0.5 * (j / self.width).square())
        omega = math.pi * torch.arange(n, dtype=torch.float64) / n
        return torch.cos(omega[:, None] * j) @ (weight / weight.sum())

    def apply(self, x: Tensor) -> Tensor:
        plane = SpectralCovariance(self.response(x)[None, None])
        return plane.apply(x)

    def adjoint(self, y: Tensor) -> Tensor:
        return self.apply(y)

    def plain(self, y: Tensor) -> Tensor:
        """The blurred image itself."""
        return y

    def _solve(self, y: Tensor, covariance: SpectralCovariance, variance: float) -> Tensor:
        power = self.response(y).square() * covariance.variance.to(y)
        return covariance.field(_divided(covariance.modes(y), power + variance))


@dataclass(frozen=True, kw_only=True)
class Colorization(LinearOperator):
    """``colorization``: the mean of three channels is known."""

    name: ClassVar[str] = "colorization"

    def measured(self, shape: Shape) -> Shape:
        if shape[0] != 3:
            raise ValueError(f"colorization: images of {shape[0]} channel, expected 3: this model makes no colors")
        return 1, *shape[1:]

    def apply(self, x: Tensor) -> Tensor:
        return x.mean(1, keepdim=True)

    def adjoint(self, y: Tensor) -> Tensor:
        return y.expand(-1, 3, -1, -1) / 3

    def plain(self, y: Tensor) -> Tensor:
        """Gray."""
        return y.expand(-1, 3, -1, -1)

    def _solve(self, y: Tensor, covariance: SpectralCovariance, variance: float) -> Tensor:
        power = covariance.variance.to(y) / 3
        if covariance.axes is not None:
            part = covariance.axes.to(y).mean(1).square()  # what an axis has of the mean
            power = (part[:, None, None] * covariance.variance.to(y)).sum(1, keepdim=True)
        plane = SpectralCovariance(power)
        return plane.field(_divided(plane.modes(y), power + variance))


OPERATORS: Mapping[str, type[LinearOperator]] = MappingProxyType(
    {kind.name: kind for kind in (Inpainting, SuperResolution, Deblurring, Colorization)}
)
"""The table of names."""


def read_operator(text: str, mask: Tensor | None = None) -> LinearOperator:
    """An operator from its notation: ``super-resolution(factor=4)``; a ``mask`` (True: unknown) for inpainting."""
    if mask is None:
        found: LinearOperator = notation.read(text, OPERATORS, "operator")
        return found
    if text.strip() != Inpainting.name:
        raise ValueError(f"operator: a mask belongs to inpainting without options, got {text!r}")
    return Inpainting(mask=mask)
