"""Noise by key: the law, and independence of batch and order."""

import pytest
import torch
from scipy.stats import kstest

import anisodiff
from anisodiff.noise import KeyedNoise, combine, white
from tests.support.oracles import keys

F64 = torch.float64


def test_normals_are_normal_and_uncorrelated():
    like = torch.empty(400, 3, 5, 7, dtype=F64)
    noise = KeyedNoise(keys(400))
    first, second = noise.normal(like), noise.normal(like)
    assert kstest(first.flatten().numpy(), "norm").pvalue > 1e-3
    for a, b in [
        (first, second),
        (first[1:], first[:-1]),
        (first[..., 1:], first[..., :-1]),
        (first[:, :, 1:], first[:, :, :-1]),
        (first.flatten(1)[:, :52], first.flatten(1)[:, 53:]),  # the two halves of Box–Muller
        (first.flatten(1)[:, :52].square() - 1, first.flatten(1)[:, 53:].square() - 1),
    ]:
        correlation = float((a * b).mean() / (a.std() * b.std()))
        assert abs(correlation) < 4 / a.numel() ** 0.5
    assert kstest(KeyedNoise(keys(5000)).uniform().numpy(), "uniform").pvalue > 1e-3


def test_a_sample_depends_on_its_key_alone():
    like = torch.empty(6, 1, 4, 4)
    whole = KeyedNoise(keys(6))
    whole.normal(like)
    third = whole.rows(slice(2, 3)).normal(like[:1])
    assert torch.equal(whole.normal(like)[2:3], third)
    process = anisodiff.process("anisotropic", 8)
    x0 = torch.rand(6, 1, 8, 8, dtype=F64)
    together = process.draw(x0, 2.0, KeyedNoise(keys(6)))
    alone = process.draw(x0[4:5], 2.0, KeyedNoise(keys(6)[4:5]))
    torch.testing.assert_close(together[4:5], alone, rtol=0, atol=1e-13)


def test_keys_combine_in_order_and_without_collisions():
    assert not torch.equal(combine(1, 2), combine(2, 1))
    assert len(torch.unique(combine(7, torch.arange(1000)[:, None], torch.arange(100)))) == 100_000


def test_wrong_keys_are_named():
    with pytest.raises(ValueError, match="int64"):
        KeyedNoise(torch.zeros(3))
    with pytest.raises(ValueError, match="3 keys"):
        white(torch.empty(2, 1, 4, 4), KeyedNoise(keys(3)))
