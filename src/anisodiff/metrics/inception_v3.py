"""The InceptionV3 that FID is defined with: TensorFlow's graph of 2015-12-05, up to its pooled features.

    float [B,3,299,299], (x − 128)/128  →  pool3, float [B,2048]

Szegedy et al. 2016, with what sets that graph apart from later ones: the first convolution sees the colors scaled by
128, batch normalization has no factor and ε = 10⁻³, the average pools inside the blocks leave the padding out of
the mean, and the pool of the last block is a maximum. Modules have the names of that graph, so that the tensors of
a published file load by name.
"""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

FEATURES = 2048
Kernel = tuple[int, int]
Spec = tuple[int, Kernel]
"""Channels and kernel of a convolution."""
ONE, THREE, FIVE, ROW, COLUMN = (1, 1), (3, 3), (5, 5), (1, 7), (7, 1)


class Convolution(nn.Module):
    """relu((w ∗ x − mean)/√(var + ε) + beta); with ``same`` the size is kept."""

    def __init__(self, inputs: int, outputs: int, kernel: Kernel, *, stride: int = 1, same: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, *kernel))
        self.beta, self.mean, self.var = (nn.Parameter(torch.empty(outputs)) for _ in range(3))
        self.stride = stride
        self.padding = (kernel[0] // 2, kernel[1] // 2) if same else (0, 0)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.conv2d(x, self.weight, stride=self.stride, padding=self.padding)
        return functional.relu(functional.batch_norm(x, self.mean, self.var, bias=self.beta, eps=1e-3))


def _average() -> nn.Module:
    return nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)


def _shrink() -> nn.Module:
    return nn.MaxPool2d(3, stride=2)


def _name(index: int) -> str:
    return f"conv_{index}" if index else "conv"


def _tower(
    inputs: int, specs: Sequence[Spec], *, pool: nn.Module | None = None, shrinks: bool = False
) -> nn.Sequential:
    """Convolutions in a row, behind a pool where one is given; with ``shrinks`` the last halves the size."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if pool is not None:
        layers["pool"] = pool
    for index, (outputs, kernel) in enumerate(specs):
        last = shrinks and index == len(specs) - 1
        layers[_name(index)] = Convolution(inputs, outputs, kernel, stride=2 if last else 1, same=not last)
        inputs = outputs
    return nn.Sequential(layers)


class Branches(nn.Module):
    """Branches of one input, joined along the channels."""

    def __init__(self, **branches: nn.Module) -> None:
        super().__init__()
        for name, branch in branches.items():
            self.add_module(name, branch)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.children()], 1)


def _block_35(inputs: int, pooled: int) -> Branches:
    return Branches(
        conv=Convolution(inputs, 64, ONE),
        tower=_tower(inputs, [(48, ONE), (64, FIVE)]),
        tower_1=_tower(inputs, [(64, ONE), (96, THREE), (96, THREE)]),
        tower_2=_tower(inputs, [(pooled, ONE)], pool=_average()),
    )


def _block_17(inputs: int, inner: int) -> Branches:
    return Branches(
        conv=Convolution(inputs, 192, ONE),
        tower=_tower(inputs, [(inner, ONE), (inner, ROW), (192, COLUMN)]),
        tower_1=_tower(inputs, [(inner, ONE), (inner, COLUMN), (inner, ROW), (inner, COLUMN), (192, ROW)]),
        tower_2=_tower(inputs, [(192, ONE)], pool=_average()),
    )


class Block8(nn.Module):
    """The last blocks, of 8×8: two towers end in a row and a column side by side."""

    def __init__(self, inputs: int, pool: nn.Module) -> None:
        super().__init__()
        self.conv = Convolution(inputs, 320, ONE)
        self.tower_conv = Convolution(inputs, 384, ONE)
        self.tower_mixed_conv = Convolution(384, 384, (1, 3))
        self.tower_mixed_conv_1 = Convolution(384, 384, (3, 1))
        self.tower_1_conv = Convolution(inputs, 448, ONE)
        self.tower_1_conv_1 = Convolution(448, 384, THREE)
        self.tower_1_mixed_conv = Convolution(384, 384, (1, 3))
        self.tower_1_mixed_conv_1 = Convolution(384, 384, (3, 1))
        self.tower_2_pool = pool
        self.tower_2_conv = Convolution(inputs, 192, ONE)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.tower_conv(x), self.tower_1_conv_1(self.tower_1_conv(x))
        parts = (
            self.conv(x), self.tower_mixed_conv(a), self.tower_mixed_conv_1(a), self.tower_1_mixed_conv(b),
            self.tower_1_mixed_conv_1(b), self.tower_2_conv(self.tower_2_pool(x)),
        )  # fmt: skip
        return torch.cat(parts, 1)


class InceptionV3(nn.Sequential):
    """The network; its parameters are empty until a state is loaded."""

    def __init__(self) -> None:
        super().__init__(
            OrderedDict[str, nn.Module](
                conv=Convolution(3, 32, THREE, stride=2, same=False),
                conv_1=Convolution(32, 32, THREE, same=False),
                conv_2=Convolution(32, 64, THREE),
                pool0=_shrink(),
                conv_3=Convolution(64, 80, ONE),
                conv_4=Convolution(80, 192, THREE, same=False),
                pool1=_shrink(),
                mixed=_block_35(192, 32),
                mixed_1=_block_35(256, 64),
                mixed_2=_block_35(288, 64),
                mixed_3=Branches(
                    conv=Convolution(288, 384, THREE, stride=2, same=False),
                    tower=_tower(288, [(64, ONE), (96, THREE), (96, THREE)], shrinks=True),
                    pool=_shrink(),
                ),
                mixed_4=_block_17(768, 128),
                mixed_5=_block_17(768, 160),
                mixed_6=_block_17(768, 160),
                mixed_7=_block_17(768, 192),
                mixed_8=Branches(
                    tower=_tower(768, [(192, ONE), (320, THREE)], shrinks=True),
                    tower_1=_tower(768, [(192, ONE), (192, ROW), (192, COLUMN), (192, THREE)], shrinks=True),
                    pool=_shrink(),
                ),
                mixed_9=Block8(1280, _average()),
                mixed_10=Block8(2048, nn.MaxPool2d(3, stride=1, padding=1)),
                pool2=nn.AvgPool2d(8),
                flat=nn.Flatten(),
            )
        )
