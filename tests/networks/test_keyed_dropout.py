"""Keyed dropout: a pure function of key, layer and position whose values look independent."""

import pytest
import torch

from anisodiff.networks import keyed_dropout, keyed_mask, layer_key
from anisodiff.noise import mix32, mix64


def python_mask(key: int, layer: int, channel: int, row: int, column: int, rate: float) -> bool:
    """The same function in Python's unbounded integers."""
    m64, m32 = 2**64 - 1, 2**32 - 1

    def finalise64(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & m64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & m64
        return z ^ (z >> 31)

    def finalise32(z: int) -> int:
        z = ((z ^ (z >> 16)) * 0x7FEB352D) & m32
        z = ((z ^ (z >> 15)) * 0x846CA68B) & m32
        return z ^ (z >> 16)

    def counter(kind: int, value: int) -> int:
        golden = 0x9E3779B97F4A7C15
        stream = finalise64((key + golden * (4 * layer + kind)) & m64)
        return finalise64((stream + golden * value) & m64) >> 32

    word = finalise32((counter(1, channel) + counter(2, (row << 32) + column)) & m32)
    # signed order: the upper half of the words comes first
    return (word + 2**31) % 2**32 >= round(rate * 2**32)


def test_equals_the_same_hash_in_unbounded_integers() -> None:
    keys = [0, 1, -1, 2**63 - 1, -(2**63), 123456789123456789]
    for layer, rate in ((0, 0.1), (7, 0.5), (61, 0.9)):
        mask = keyed_mask(layer_key(torch.tensor(keys), layer), (3, 4, 5), rate)
        expected = [
            [[[python_mask(k, layer, c, i, j, rate) for j in range(5)] for i in range(4)] for c in range(3)]
            for k in keys
        ]
        assert torch.equal(mask, torch.tensor(expected))


def test_finalisers_are_bijections_with_avalanche() -> None:
    """No two inputs collide, and flipping any input bit flips each output bit about half of the time."""
    g = torch.Generator().manual_seed(0)
    for mix, bits, dtype in ((mix32, 32, torch.int32), (mix64, 64, torch.int64)):
        z = torch.randint(-(2**31), 2**31, (20000,), generator=g).to(dtype)
        assert mix(z.unique()).unique().numel() == z.unique().numel()
        for bit in range(bits):
            flipped = z ^ torch.tensor((1 << bit) - (2**bits if bit == bits - 1 else 0), dtype=dtype)
            change = (mix(z) ^ mix(flipped))[:, None] >> torch.arange(bits, dtype=dtype)
            rates = (change & 1).double().mean(0)
            assert (rates - 0.5).abs().max() < 0.035  # ten standard errors


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.7])
def test_keep_rate(rate: float) -> None:
    """In all, per sample, channel and pixel: the kept share is 1 − rate within five standard errors."""
    mask = keyed_mask(layer_key(torch.arange(64), 3), (16, 16, 16), rate).double()
    for dims in ((0, 1, 2, 3), (1, 2, 3), (0, 2, 3), (0, 1)):
        share = mask.mean(dims)
        count = mask.numel() / share.numel()
        assert (share - (1 - rate)).abs().max() < 5 * (rate * (1 - rate) / count) ** 0.5


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    """Correlation times √n: standard normal when independent."""
    return float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]).double())[0, 1] * a.numel() ** 0.5)


def test_independent_across_keys_layers_and_positions() -> None:
    """Neighboring keys, layers, channels and pixels, near and far, and keys that differ in one high bit."""
    base = keyed_mask(layer_key(torch.arange(32), 5), (32, 16, 16), 0.3)
    assert abs(correlation(base[:-1], base[1:])) < 4.5
    for step in (1, 2, 8):
        assert abs(correlation(base[:, step:], base[:, :-step])) < 4.5
        assert abs(correlation(base[:, :, step:], base[:, :, :-step])) < 4.5
        assert abs(correlation(base[..., step:], base[..., :-step])) < 4.5
    assert abs(correlation(base[:, 1:, 1:], base[:, :-1, :-1])) < 4.5
    for layer in (0, 4, 6, 5 + 32):
        assert abs(correlation(base, keyed_mask(layer_key(torch.arange(32), layer), (32, 16, 16), 0.3))) < 4.5
    for other in (1 << 32, 1 << 62, -(1 << 63)):
        keys = torch.arange(32) ^ other
        assert abs(correlation(base, keyed_mask(layer_key(keys, 5), (32, 16, 16), 0.3))) < 4.5


def test_patterns_follow_the_product_law() -> None:
    """χ² of the 16 patterns on corners (c,i), (c,j), (d,i), (d,j): where a sum of two hashes could fail."""
    m = keyed_mask(layer_key(torch.arange(400), 2), (16, 8, 8), 0.5).flatten(2).long()
    c, d, i, j = m[:, 0::2], m[:, 1::2], slice(0, None, 2), slice(1, None, 2)
    pattern = (8 * c[..., i] + 4 * c[..., j] + 2 * d[..., i] + d[..., j]).flatten()
    counts = torch.bincount(pattern, minlength=16).double()
    expected = pattern.numel() / 16
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert 2.0 < chi2 < 45.0  # 15 degrees of freedom: both tails beyond 1e-4


def test_does_not_depend_on_batch_or_image_size() -> None:
    keys = torch.tensor([5, -9, 5, 77])
    whole = keyed_mask(layer_key(keys, 1), (6, 8, 10), 0.4)
    assert torch.equal(whole[0], whole[2])
    assert not torch.equal(whole[0], whole[1])
    assert torch.equal(whole[1:2], keyed_mask(layer_key(keys[1:2], 1), (6, 8, 10), 0.4))
    assert torch.equal(whole[:, :4, :5, :7], keyed_mask(layer_key(keys, 1), (4, 5, 7), 0.4))


def test_dropout_scales_and_differentiates() -> None:
    x = torch.randn(4, 8, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    key = torch.arange(4)
    y = keyed_dropout(x, key, rate=0.25)
    mask = keyed_mask(layer_key(key, 0), (8, 6, 6), 0.25)
    torch.testing.assert_close(y, x * mask / 0.75, rtol=1e-14, atol=0)
    y.sum().backward()
    torch.testing.assert_close(x.grad, mask / torch.tensor(0.75, dtype=torch.float64), rtol=1e-14, atol=0)
    assert keyed_dropout(x, None, rate=0.25) is x
    assert keyed_dropout(x, key, rate=0.0) is x


def test_touches_no_random_state() -> None:
    before = torch.random.get_rng_state()
    keyed_mask(layer_key(torch.arange(3), 0), (2, 2, 2), 0.5)
    assert torch.equal(before, torch.random.get_rng_state())


def test_wrong_keys() -> None:
    x = torch.zeros(2, 4, 4, 4)
    with pytest.raises(ValueError, match=r"got torch.int32 \[2\], expected torch.int64 \[2\]"):
        keyed_dropout(x, torch.zeros(2, dtype=torch.int32), rate=0.1)
    with pytest.raises(ValueError, match=r"got torch.int64 \[3\]"):
        keyed_dropout(x, torch.zeros(3, dtype=torch.int64), rate=0.1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_same_mask_on_cuda() -> None:
    keys = torch.tensor([0, -1, 2**62, 12345])
    assert torch.equal(
        keyed_mask(layer_key(keys, 9), (32, 16, 16), 0.1),
        keyed_mask(layer_key(keys.cuda(), 9), (32, 16, 16), 0.1).cpu(),
    )
