"""Operators against dense linear algebra: adjoint, solve, shapes, notation, and what a user can get wrong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from anisodiff.inverse import OPERATORS, LinearOperator, SpectralCovariance, read_operator
from anisodiff.inverse.operators import Deblurring, Inpainting

F64 = torch.float64
SHAPE = (3, 6, 8)
MASK = torch.zeros(1, 6, 8, dtype=torch.bool)
MASK[:, 1:3, 2:7] = True
TABLE = (
    read_operator("inpainting(hole=3)"), read_operator("inpainting(missing=0.4, seed=5)"),
    read_operator("inpainting", MASK), read_operator("super-resolution(factor=2)"),
    read_operator("deblurring(width=0.8)"), read_operator("deblurring(kernel=box, width=3)"),
    read_operator("colorization"),
)  # fmt: skip


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def dense(operator: LinearOperator, shape: tuple[int, int, int] = SHAPE) -> Tensor:
    """A as a matrix, from the images of all unit vectors."""
    count = shape[0] * shape[1] * shape[2]
    return operator.apply(torch.eye(count, dtype=F64).reshape(count, *shape)).flatten(1).mT


def covariances() -> dict[str, SpectralCovariance]:
    axes = torch.linalg.qr(draw(3, 3, seed=3)).Q
    return {
        "white": SpectralCovariance(torch.full((1, 1, 1, 1), 0.3, dtype=F64)),
        "spectral": SpectralCovariance(draw(1, 1, *SHAPE[1:], seed=1).square() + 0.01),
        "channels": SpectralCovariance(draw(1, *SHAPE, seed=2).square() + 0.01, axes),
    }


@pytest.mark.parametrize("operator", TABLE, ids=str)
def test_adjoint_shapes_and_notation(operator: LinearOperator) -> None:
    shape = operator.measured(SHAPE)
    x, y = draw(4, *SHAPE), draw(4, *shape, seed=1)
    seen, back = operator.apply(x), operator.adjoint(y)
    assert (seen.shape, back.shape) == (y.shape, x.shape)
    torch.testing.assert_close((seen * y).sum((1, 2, 3)), (x * back).sum((1, 2, 3)))
    assert operator.plain(y).shape == x.shape
    assert operator.count(y) == int((dense(operator).abs().sum(1) > 0).sum())
    if getattr(operator, "mask", None) is None:
        again = read_operator(str(operator))
        assert torch.equal(again.apply(x), seen)


@pytest.mark.parametrize("name", ["white", "spectral", "channels"])
@pytest.mark.parametrize("operator", TABLE, ids=str)
def test_solve_is_that_of_dense_matrices(operator: LinearOperator, name: str) -> None:
    covariance, count = covariances()[name], torch.tensor(SHAPE).prod()
    a = dense(operator)
    c = covariance.apply(torch.eye(int(count), dtype=F64).reshape(-1, *SHAPE)).flatten(1)
    y = operator.apply(draw(2, *SHAPE, seed=4))
    for noise in (0.0, 0.1, 3.0):
        matrix = a @ c @ a.mT + noise**2 * torch.eye(len(a), dtype=F64)
        exact = (torch.linalg.pinv(matrix, hermitian=True, rtol=1e-9) @ y.flatten(1).mT).mT.reshape(y.shape)
        torch.testing.assert_close(operator.solve(y, covariance, noise), exact, rtol=1e-5, atol=1e-6)
    assert torch.equal(operator.solve(y, covariance, float("inf")), torch.zeros_like(y))


def test_a_sample_of_a_batch_is_solved_as_if_alone() -> None:
    operator, covariance = TABLE[0], covariances()["spectral"]
    y = operator.apply(draw(3, *SHAPE)) * torch.tensor([1.0, 1e-3, 50.0])[:, None, None, None]
    alone = torch.cat([operator.solve(y[k : k + 1], covariance, 0.1) for k in range(3)])
    torch.testing.assert_close(operator.solve(y, covariance, 0.1), alone, rtol=1e-12, atol=1e-15)


def test_blur_is_the_convolution_with_a_reflected_image() -> None:
    x = draw(1, 1, 7, 9)
    padded = torch.cat([x.flip(-1), x, x.flip(-1)], -1)
    padded = torch.cat([padded.flip(-2), padded, padded.flip(-2)], -2)
    box = torch.nn.functional.avg_pool2d(padded, 3, stride=1)[..., 6:13, 8:17]
    torch.testing.assert_close(Deblurring(kernel="box", width=3).apply(x), box)
    j = torch.arange(-4.0, 5.0, dtype=F64)
    kernel = torch.exp(-0.5 * j.square())
    kernel = (kernel[:, None] * kernel / kernel.sum() ** 2)[None, None]
    smooth = torch.nn.functional.conv2d(padded, kernel)[..., 3:10, 5:14]
    torch.testing.assert_close(Deblurring(width=1).apply(x), smooth)


def test_holes_and_missing_pixels() -> None:
    hole = Inpainting(hole=2).unknown(6, 8)
    assert hole.nonzero()[:, 1:].tolist() == [[2, 3], [2, 4], [3, 3], [3, 4]]
    some = Inpainting(missing=0.25, seed=1).unknown(6, 8)
    assert int(some.sum()) == 12
    assert torch.equal(some, Inpainting(missing=0.25, seed=1).unknown(6, 8))
    assert not torch.equal(some, Inpainting(missing=0.25, seed=2).unknown(6, 8))
    y = Inpainting(hole=2).apply(torch.full((1, 3, 6, 8), 0.7))
    torch.testing.assert_close(Inpainting(hole=2).plain(y), torch.full((1, 3, 6, 8), 0.7))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inpainting", "needs one of hole=SIDE, missing=SHARE, or a mask"),
        ("inpainting(hole=2, missing=0.5)", "needs one of"),
        ("inpainting(missing=1)", r"in \[0, 1\), got 1"),
        ("inpainting(mask=a)", "not in the text"),
        ("super-resolution(factor=1)", "factor: got 1, expected a whole number from 2 to 64"),
        ("super-resolution(factor=2.5)", "whole number"),
        ("superresolution", "did you mean 'super-resolution'"),
        ("deblurring(kernel=boxes)", "did you mean 'box'"),
        ("deblurring(kernel=box, width=4)", "odd number of pixels"),
        ("deblurring(width=0)", "0.1 to 100 pixels, got 0"),
        ("colorization(3)", "takes 0 values"),
    ],
)
def test_mistakes_are_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_operator(text)
    assert "\n" not in str(caught.value)


def test_images_that_do_not_fit() -> None:
    for text, shape, message in (
        ("super-resolution(factor=4)", (3, 6, 8), "6×8 pixels are no multiple of factor=4"),
        ("colorization", (1, 6, 8), "expected 3"),
        ("inpainting(hole=6)", (3, 6, 8), "leaves nothing of 6×8"),
    ):
        with pytest.raises(ValueError, match=message):
            read_operator(text).measured(shape)
    with pytest.raises(ValueError, match=r"mask .1, 6, 8., expected .1, 8, 8."):
        read_operator("inpainting", MASK).measured((3, 8, 8))
    with pytest.raises(ValueError, match="belongs to inpainting"):
        read_operator("colorization", MASK)
    assert set(OPERATORS) == {operator.name for operator in TABLE}
