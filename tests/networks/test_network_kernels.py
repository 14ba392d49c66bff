"""Fused kernels of the network against its plain form, in Triton's interpreter where there is no GPU."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anisodiff.networks import NCSNpp, NCSNppConfig, kernels, keyed_dropout, keyed_mask
from anisodiff.networks.kernels.layout import rows
from anisodiff.networks.layers import group_norm
from anisodiff.networks.resample import TAPS, DownConv, downsample, fir2d, upsample
from anisodiff.runtime.cuda_graphs import Replay
from tests.support.gpu_kernels import (
    DEVICE,
    HAS_TRITON,
    INTERPRETED,
    allow_ranges,
    launches,
    needs_compiler,
    needs_cuda,
    run_interpreted,
    runs_kernels,
    starts_interpreter,
)

precisions = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])

if INTERPRETED and HAS_TRITON:
    allow_ranges()


@pytest.fixture
def fused(monkeypatch):
    """Kernels on this machine's device; memory that nothing was written to is NaN."""
    monkeypatch.setattr(kernels, "devices", {DEVICE})
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # its convolutions are right to 5e-4 only
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(8).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def features(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, mean: float = 0.0) -> Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) + mean
    return values.to(DEVICE, dtype, memory_format=torch.channels_last if len(shape) == 4 else torch.contiguous_format)


def exact(x: Tensor) -> Tensor:
    return x.detach().double().requires_grad_()


def close(found: Tensor | None, expected: Tensor | None, tolerance: float) -> None:
    assert found is not None
    assert expected is not None
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= tolerance * expected.abs().max()  # false for NaN


def norm_of(channels: int) -> nn.GroupNorm:
    norm = group_norm(channels).to(DEVICE)
    with torch.no_grad():
        norm.weight.copy_(1 + 0.5 * features(channels, seed=5))
        norm.bias.copy_(features(channels, seed=6))
    return norm


@runs_kernels
@precisions
@pytest.mark.parametrize(
    ("batch", "channels", "height", "width", "shifted", "swish", "rate"),
    [
        (2, 32, 3, 5, True, True, 0.3),
        (1, 48, 4, 4, True, True, 0.0),
        (2, 96, 2, 3, False, True, 0.3),
        (1, 384, 2, 2, False, True, 0.0),  # twelve channels a group: 24 a program
        (3, 8, 9, 8, False, False, 0.0),  # more than one tile
        (1, 32, 26, 41, True, True, 0.3),  # pixels of an image shared among programs
        (1, 640, 1, 1, True, False, 0.0),
        (1, 1056, 5, 7, True, True, 0.3),  # 33 channels a group
    ],
)
def test_normalize(fused, batch, channels, height, width, shifted, swish, rate, dtype, tolerance):
    shape, norm = (batch, channels, height, width), norm_of(channels)
    x = features(*shape, dtype=dtype, mean=2.0).requires_grad_()
    shift = features(batch, channels, seed=1).requires_grad_() if shifted else None
    key = torch.tensor([-(2**63), 5, 2**62 + 3], device=DEVICE)[:batch]
    dy, around = features(*shape, seed=2, dtype=dtype), features(*shape, seed=3, dtype=dtype)
    y, again = kernels.normalize(x, norm, shift=shift, swish=swish, key=key, rate=rate)
    assert y.dtype == dtype
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(again, x)
    torch.autograd.backward([y, again], [dy, around])

    plain, wide = group_norm(channels).to(DEVICE, torch.float64), exact(x)
    plain.load_state_dict(norm.state_dict())
    added = None if shift is None else exact(shift)
    u = plain(wide if added is None else wide + added[:, :, None, None])
    expected = keyed_dropout(F.silu(u) if swish else u, key, rate=rate)
    torch.autograd.backward([expected, wide], [dy.double(), around.double()])
    for found, wanted in (
        (y, expected), (x.grad, wide.grad), (norm.weight.grad, plain.weight.grad), (norm.bias.grad, plain.bias.grad),
    ):  # fmt: skip
        close(found, wanted, tolerance)
    if shift is not None:
        close(shift.grad, added.grad, tolerance)
    if rate:
        assert torch.equal((y == 0), ~keyed_mask(key, shape[1:], rate) | (expected == 0))


@runs_kernels
@pytest.mark.parametrize("rate", [0.1, 0.9])
def test_masks_are_equal_bit_by_bit(fused, rate):
    norm = norm_of(36)
    with torch.no_grad():
        norm.weight.zero_()
        norm.bias.fill_(1.0)
    key = torch.tensor([0, -1, 2**63 - 1, -(2**63)], device=DEVICE)
    y, _ = kernels.normalize(features(4, 36, 5, 7), norm, swish=False, key=key, rate=rate)
    kept = keyed_mask(key, (36, 5, 7), rate)
    assert 0 < kept.float().mean() < 1
    assert torch.equal(y, kept * torch.tensor(1 / (1 - rate), device=DEVICE))


@runs_kernels
def test_a_large_mean_leaves_the_variance_alone(fused):
    """E[x²] − E[x]² would be wrong in the second digit."""
    x = features(1, 8, 9, 8, mean=1000.0)
    y, _ = kernels.normalize(x, norm_of(8), swish=False)
    close(y, norm_of(8).double()(x.double()), 2e-4)


def parts(x: Tensor, count: int) -> Tensor:
    """The same values as the middle channels of a wider tensor."""
    wide = torch.cat([torch.full_like(x, torch.nan)[:, :count], x, torch.full_like(x, torch.nan)[:, :count]], 1)
    return wide.contiguous(memory_format=torch.channels_last)[:, count:-count]


@runs_kernels
def test_any_layout(fused):
    """Parts of the channels are read where they are, everything else is copied: the values are the same."""
    norm, shape = norm_of(16), (2, 16, 4, 6)
    given, dy, around = (features(*shape, seed=seed) for seed in range(3))
    results = []
    for layout in (lambda v: v, Tensor.contiguous, lambda v: parts(v, 8), lambda v: v.mT.clone().mT):
        x = layout(given).detach().requires_grad_()
        norm.zero_grad()
        y, again = kernels.normalize(x, norm)
        z = kernels.add_scaled(again, layout(y), norm.bias, 0.5)
        small = kernels.resample(z, 1 / 8, pad=(1, 1), down=2)
        torch.autograd.backward([y, z, small], [layout(dy), layout(around), layout(dy)[..., :2, :3]])
        results.append((y, z, small, x.grad, norm.weight.grad.clone(), norm.bias.grad.clone()))
    for others in results[1:]:
        for found, expected in zip(others, results[0]):
            close(found, expected, 1e-6)


def test_rows_of_pixels():
    x = torch.randn(2, 6, 3, 4)
    last = x.contiguous(memory_format=torch.channels_last)
    assert rows(last)[0] is last
    assert rows(last)[1] == 6
    part = last[:, 2:5]
    assert rows(part)[0] is part
    assert rows(part)[1] == 6
    for other in (x, last[..., :3], last[:, :, :2], last.flip(3), last[:, ::2], x[:, :1].expand(2, 6, 3, 4)):
        copied, pitch = rows(other)
        assert copied.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(copied, other)
        assert pitch == other.shape[1]
    for shape in ((1, 5, 1, 1), (3, 1, 2, 2), (2, 5, 1, 1), (1, 1, 1, 1), (1, 4, 3, 1)):
        for memory in (torch.contiguous_format, torch.channels_last):
            given = torch.randn(*shape).contiguous(memory_format=memory)
            found, pitch = rows(given)
            pixels = shape[0] * shape[2] * shape[3]
            seen = found.as_strided((pixels, shape[1]), (pitch, 1)).view(shape[0], shape[2], shape[3], shape[1])
            assert torch.equal(seen.permute(0, 3, 1, 2), given)


@runs_kernels
@precisions
@pytest.mark.parametrize("shape", [(2, 32, 3, 5), (1, 96, 4, 4), (3, 3, 7, 9), (1, 1, 1, 1)])
def test_add_scaled(fused, shape, dtype, tolerance):
    x, h, dy = (features(*shape, seed=seed, dtype=dtype) for seed in range(3))
    bias = features(shape[1], seed=3)
    given = [v.requires_grad_() for v in (x, h, bias)]
    y = kernels.add_scaled(*given, 0.7)
    y.backward(dy)
    wide = [exact(v) for v in given]
    expected = (wide[0] + wide[1] + wide[2][:, None, None]) * 0.7
    expected.backward(dy.double())
    assert y.dtype == dtype
    for found, wanted in ((y, expected), *((a.grad, b.grad) for a, b in zip(given, wide))):
        close(found, wanted, tolerance)


@runs_kernels
def test_add_scaled_of_two_precisions(fused):
    x = features(2, 32, 3, 3).requires_grad_()
    h = features(2, 32, 3, 3, seed=1, dtype=torch.bfloat16).requires_grad_()
    y = kernels.add_scaled(x, h, torch.zeros(32, device=DEVICE), 1.0)
    y.backward(features(2, 32, 3, 3, seed=2))
    assert torch.equal(y, x + h)
    assert (x.grad.dtype, h.grad.dtype) == (torch.float32, torch.bfloat16)


@runs_kernels
@precisions
@pytest.mark.parametrize("shape", [(2, 32, 4, 6), (1, 96, 2, 2), (2, 3, 8, 4), (1, 1, 2, 2)])
def test_resampling(fused, shape, dtype, tolerance):
    conv, quarter = DownConv(shape[1], 1, fir=True), tuple(tap / 4 for tap in TAPS)
    for way in (
        lambda x: downsample(x, fir=True),
        lambda x: upsample(x, fir=True),
        conv.padded,
        lambda x: kernels.resample(x, 1 / 4, pad=(1, 1)) if kernels.fits(x) else fir2d(x, quarter, pad=(1, 1)),
    ):
        x = features(*shape, dtype=dtype).requires_grad_()
        assert kernels.fits(x)
        y, wide = way(x), exact(x)
        expected = way(wide)
        dy = features(*y.shape, seed=1, dtype=dtype)
        y.backward(dy)
        expected.backward(dy.double())
        close(y, expected, tolerance)
        close(x.grad, wide.grad, tolerance)


SMALL = NCSNppConfig(image_size=8, nf=8, multipliers=(1, 2), blocks=1, attention=(4,), dropout=0.3, init_scale=1.0)
NETWORKS = {
    "default": {},
    "box": {"fir": False, "progressive_input": "none"},
    "skips": {"progressive": "output_skip", "progressive_input": "input_skip"},
    "residual": {"progressive": "residual"},
    "qk-norm": {"qk_norm": True},
}


def passes(net: NCSNpp, dtype: torch.dtype, *, half: bool = False) -> list[Tensor]:
    """Output and gradients of a forward and a backward pass."""
    net = net.to(DEVICE, dtype).to(memory_format=torch.channels_last)
    for p in net.parameters():  # biases begin at zero, where their place would not matter
        with torch.no_grad():
            p += 0.1 * features(*p.shape, seed=p.numel()).to(p)
    x, level = features(2, 3, 8, 8).to(dtype), features(2, seed=1).to(dtype)
    with torch.autocast(DEVICE, torch.bfloat16, enabled=half):
        out = net(x, level, dropout_key=torch.tensor([3, -4], device=DEVICE))
    out.backward(features(*out.shape, seed=2).to(out.dtype))
    return [out.detach(), *(p.grad for p in net.parameters())]


def distance(found: list[Tensor], expected: list[Tensor]) -> float:
    """Of all gradients together: some are rounding alone (a bias before a normalization)."""
    assert all(torch.isfinite(one).all() for one in found)
    a, b = (torch.cat([one.double().flatten() for one in several]) for several in (found, expected))
    return float((a - b).norm() / b.norm())


@runs_kernels
@pytest.mark.parametrize("name", NETWORKS)
def test_the_whole_network(fused, name):
    config = replace(SMALL, **NETWORKS[name])
    exactly = passes(NCSNpp(config), torch.float64)
    found = passes(NCSNpp(config), torch.float32)
    assert distance(found[:1], exactly[:1]) < 1e-5
    assert distance(found[1:], exactly[1:]) < 1e-5


@runs_kernels
def test_the_whole_network_in_half_precision(fused, monkeypatch):
    exactly, found = passes(NCSNpp(SMALL), torch.float64), passes(NCSNpp(SMALL), torch.float32, half=True)
    monkeypatch.setattr(kernels, "devices", set())
    plain = passes(NCSNpp(SMALL), torch.float32, half=True)
    for part in (slice(0, 1), slice(1, None)):
        assert distance(found[part], exactly[part]) < 1.5 * distance(plain[part], exactly[part]) < 0.1


@runs_kernels
def test_recomputation_changes_nothing(fused):
    first, second = (passes(NCSNpp(SMALL, checkpoint=recompute), torch.float32) for recompute in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(first, second))


@starts_interpreter
def test_the_kernels_in_the_interpreter():
    run_interpreted(__file__, least=20)


@needs_compiler
def test_they_compile_for_a_large_gpu(monkeypatch):
    """What the interpreter does not see. Features are read and written 16 bytes at a time."""
    monkeypatch.setattr(kernels, "devices", {"cpu"})
    net = NCSNpp(replace(SMALL, nf=32)).to(memory_format=torch.channels_last)
    with launches() as seen, torch.autocast("cpu", torch.bfloat16):
        for size in (8, 40):  # the pixels of the larger are shared among programs
            x, level = torch.randn(1, 3, size, size).contiguous(memory_format=torch.channels_last), torch.zeros(1)
            net(x, level, dropout_key=torch.tensor([3])).sum().backward()
    names = {variant.name for variant in seen}
    assert names == {"_forward", "_backward", "_add", "_add_backward", "_filter"}
    assert len(seen) < 40
    for variant in seen:
        code = variant.compile().asm["ptx"]
        if ("channels", 3) not in variant.constants and "channels" in variant.aligned:
            assert "ld.global.v4.b32" in code, variant
            assert "st.global.v4.b32" in code or ("PHASE", 1) in variant.constants, variant


def test_what_the_kernels_take(monkeypatch):
    x = torch.zeros(1, 4, 2, 2)
    assert not kernels.fits(x)
    monkeypatch.setattr(kernels, "devices", {"cpu"})
    assert kernels.fits(x) == HAS_TRITON
    assert kernels.fits(x.bfloat16()) == HAS_TRITON
    assert not kernels.fits(x.double())
    assert not kernels.fits(x[:0])
    assert not torch.compile(lambda x: x + kernels.fits(x), backend="eager", fullgraph=True)(x).any()


@needs_cuda
def test_a_captured_network_gives_the_same_gradients():
    net = NCSNpp(replace(SMALL, nf=32)).cuda().to(memory_format=torch.channels_last)
    dy = features(2, 3, 8, 8, seed=2)

    def step(x: Tensor, level: Tensor, key: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            out = net(x, level, dropout_key=key)
        out.backward(dy.to(out.dtype))
        return out.detach()

    replay = Replay(step, lambda: net.zero_grad(set_to_none=True))
    for seed in range(3):
        given = features(2, 3, 8, 8, seed=seed), features(2, seed=seed), torch.tensor([seed, 7], device="cuda")
        out = replay(*given).clone()
        found = [p.grad.clone() for p in net.parameters()]
        places = [p.grad for p in net.parameters()]
        net.zero_grad(set_to_none=True)
        expected = step(*given)
        assert distance([out], [expected]) < 1e-2
        assert distance(found, [p.grad for p in net.parameters()]) < 1e-2
        for p, place in zip(net.parameters(), places):  # where the graph writes
            p.grad = place


@needs_cuda
def test_more_elements_than_32_bits_count():
    """The last of 33 images of 1024² with 64 channels lies beyond 2³¹ elements."""
    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("needs 40 GiB")
    x = torch.empty(33, 64, 1024, 1024, dtype=torch.bfloat16, device="cuda", memory_format=torch.channels_last)
    x.normal_().requires_grad_()
    norm, bias = norm_of(64), features(64)
    y, again = kernels.normalize(x, norm)
    z = kernels.add_scaled(y, again, bias, 0.5)
    small = kernels.resample(z, 1 / 8, pad=(1, 1), down=2)
    small[-1:].float().square().sum().backward()
    last = x.detach()[-1:].clone(memory_format=torch.channels_last).requires_grad_()
    y, again = kernels.normalize(last, norm)
    alone = kernels.resample(kernels.add_scaled(y, again, bias, 0.5), 1 / 8, pad=(1, 1), down=2)
    alone.float().square().sum().backward()
    close(small[-1:].float(), alone.float(), 2e-2)
    close(x.grad[-1:].float(), last.grad.float(), 2e-2)
    assert not x.grad[:-1].any()
