"""The network as a whole: shapes, initialization, dropout keys, layouts, compilation, recomputation."""

from dataclasses import replace

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from anisodiff.networks import NCSNpp, NCSNppConfig, keyed_mask, layer_key
from anisodiff.networks.layers import Attention, ResidualBlock

TINY = NCSNppConfig(image_size=8, nf=8, multipliers=(1, 2), blocks=1, attention=(4,), dropout=0.3)
SWITCHES = {
    "default": {},
    "skips": {"progressive": "output_skip", "progressive_input": "input_skip", "combine": "cat"},
    "residual-box": {"progressive": "residual", "fir": False},
    "ddpm": {"block": "ddpm", "embedding": "positional", "progressive_input": "none"},
    "qk-norm": {"qk_norm": True},
}


def network(seed: int = 0, **changes: object) -> NCSNpp:
    """In float64, with residual branches that are not close to zero."""
    g = torch.Generator().manual_seed(seed)
    return NCSNpp(replace(TINY, init_scale=1.0, **changes), generator=g).double()


def batch(count: int = 2, height: int = 8, width: int = 8, channels: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(7)
    x = torch.randn(count, channels, height, width, generator=g, dtype=torch.float64)
    return x, torch.randn(count, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("name", SWITCHES)
def test_any_size_and_channels(name: str) -> None:
    net = network(in_channels=2, out_channels=5, multipliers=(1, 2, 1), **SWITCHES[name])
    x, c = batch(2, 12, 20, 2)
    out = net(x, c)
    assert out.shape == (2, 5, 12, 20)
    assert out.std() > 1e-3
    torch.testing.assert_close(out[1:], net(x[1:], c[1:]), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", SWITCHES)
def test_every_parameter_and_both_inputs_matter(name: str) -> None:
    net = network(**SWITCHES[name])
    x, c = (v.requires_grad_() for v in batch())
    net(x, c).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 1e-12 for p in net.parameters())
    assert all(v.grad.flatten(1).abs().amin() > 0 if v.ndim > 1 else v.grad.abs().amin() > 0 for v in (x, c))


def test_starts_almost_linear_with_zero_output() -> None:
    """init_scale 0: every residual branch and the output layer start at about 1e-5 of their size."""
    net = NCSNpp(replace(TINY, nf=32), generator=torch.Generator().manual_seed(0)).double()
    x, c = batch()
    assert net(x, c).abs().max() < 1e-3
    assert net.middle[0].conv1.weight.abs().max() < 1e-4
    weight = net.middle[0].conv0.weight
    radius = (3 / (9 * weight.shape[0])) ** 0.5
    assert 0.99 * radius < weight.abs().max() <= radius
    assert weight.var().item() == pytest.approx(radius**2 / 3, rel=0.03)
    q = net.middle[1].qkv.weight[:64]
    assert q.var().item() == pytest.approx(0.1 / 64, rel=0.06)


@pytest.mark.parametrize(("block", "scale"), [("biggan", 1.0), ("ddpm", 0.1)])
def test_shortcuts_start_as_published(block: str, scale: float) -> None:
    """A 1×1 convolution in BigGAN's block, DDPM's smaller linear map in the other."""
    weight = network(nf=32, block=block).down[1].blocks[0].shortcut.weight
    assert weight.shape == (64, 32, 1, 1)
    assert weight.var().item() == pytest.approx(scale / 48, rel=0.1)


def test_weights_come_from_the_generator_alone() -> None:
    before = torch.random.get_rng_state()
    a, b, other = network(3), network(3), network(4)
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())
    assert not torch.equal(a.conv_in.weight, other.conv_in.weight)
    assert not torch.equal(a.embed.features.w, other.embed.features.w)


def test_fourier_frequencies_are_frozen_but_saved() -> None:
    net = NCSNpp(replace(TINY, nf=128), generator=torch.Generator().manual_seed(0))
    assert "embed.features.w" in net.state_dict()
    assert "embed.features.w" not in dict(net.named_parameters())
    assert net.embed.features.w.std().item() == pytest.approx(16, rel=0.2)


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_dropout_is_on_exactly_with_keys(rate: float) -> None:
    net = network(dropout=rate)
    x, c = batch()
    plain = net.train()(x, c)
    assert torch.equal(plain, net.eval()(x, c))
    dropped = net.eval()(x, c, dropout_key=torch.tensor([1, 2]))
    assert torch.equal(plain, dropped) == (rate == 0)


def test_masks_follow_the_key_not_the_place_in_the_batch() -> None:
    """Antithetic pairs with one key share their masks; sharding and order do not matter."""
    net = network()
    x, c = batch(1)
    x, c = x.expand(4, -1, -1, -1), c.expand(4)
    out = net(x, c, dropout_key=torch.tensor([11, 12, 11, 13]))
    torch.testing.assert_close(out[0], out[2], rtol=1e-12, atol=1e-12)
    assert (out[0] - out[1]).abs().max() > 1e-3
    torch.testing.assert_close(net(x[:1], c[:1], dropout_key=torch.tensor([13])), out[3:], rtol=1e-11, atol=1e-11)


def test_layers_draw_different_masks() -> None:
    net = network(multipliers=(1, 2, 1), blocks=2)
    layers = [m.layer for m in net.modules() if hasattr(m, "layer")]
    assert len(layers) > 15
    assert sorted(layers) == list(range(len(layers)))
    masks = [keyed_mask(layer_key(torch.tensor([5]), layer), (8, 4, 4), 0.5) for layer in layers]
    assert all(not torch.equal(masks[0], mask) for mask in masks[1:])


@pytest.mark.parametrize("name", SWITCHES)
def test_recomputation_gives_identical_gradients(name: str) -> None:
    x, c = batch()
    gradients = []
    for checkpoint in (False, True):
        net = network(**SWITCHES[name])
        net.checkpoint = checkpoint
        net(x, c, dropout_key=torch.tensor([3, 4])).square().sum().backward()
        gradients.append([p.grad for p in net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients))


def test_recomputation_keeps_fewer_tensors() -> None:
    x, c = batch()
    kept = []
    for checkpoint in (False, True):
        net = NCSNpp(TINY, checkpoint=checkpoint).double()
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: s.append(t.numel()) or t, lambda t: t):
            net(x, c)
        kept.append(sum(sizes))
    assert kept[1] < 0.5 * kept[0]


@pytest.mark.parametrize("name", SWITCHES)
def test_channels_last_changes_nothing_and_survives(name: str) -> None:
    x, c = batch(2, 8, 16)
    key = torch.tensor([1, 2])
    expected = network(**SWITCHES[name])(x, c, dropout_key=key)
    net = network(**SWITCHES[name]).to(memory_format=torch.channels_last)
    out = net(x.to(memory_format=torch.channels_last), c, dropout_key=key)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
    assert out.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_compiles_into_one_graph(checkpoint: bool) -> None:
    """fullgraph=True fails on any graph break; the eager backend runs what was captured."""
    net = network()
    net.checkpoint = checkpoint
    x, c = batch()
    key = torch.tensor([1, 2])
    compiled = torch.compile(net, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, c, dropout_key=key), net(x, c, dropout_key=key), rtol=1e-12, atol=1e-12)


def test_blocks_of_one_shape_share_one_graph() -> None:
    """Compiled one by one, blocks are told apart by their shapes, not by their numbers; the values stay."""
    net = network(blocks=2)
    blocks = [module for module in net.modules() if isinstance(module, ResidualBlock)]
    shapes = set()

    def see(block: ResidualBlock, given: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        shapes.add((tuple(given[0].shape), tuple(out.shape)))

    hooks = [block.register_forward_hook(see) for block in blocks]
    x, c = batch()
    key = torch.tensor([1, 2])
    with torch.no_grad():
        expected = net(x, c, dropout_key=key)
        for hook in hooks:
            hook.remove()
        counter = CompileCounter()  # the eager backend, with a count of its graphs
        with torch._dynamo.config.patch(recompile_limit=len(blocks)):
            for block in blocks:
                block.compile(backend=counter, fullgraph=True, dynamic=False)
            out = net(x, c, dropout_key=key)
    assert counter.frame_count == len(shapes) < len(blocks)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)


def test_bad_inputs() -> None:
    net = network()
    x, c = batch()
    with pytest.raises(ValueError, match=r"x: got \[2, 1, 8, 8\], expected \[B, 3, H, W\]"):
        net(x[:, :1], c)
    with pytest.raises(ValueError, match=r"x: got 7×8 pixels, expected multiples of 2"):
        net(x[:, :, :7], c)
    with pytest.raises(ValueError, match=r"noise_level: got \[1\], expected \[2\]"):
        net(x, c[:1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="bfloat16 is supported on CUDA only")
def test_bfloat16_on_cuda_stays_close() -> None:
    net = network(nf=32).float().cuda().to(memory_format=torch.channels_last)
    x, c = (v.float().cuda() for v in batch(4))
    key = torch.arange(4, device="cuda")
    exact = net(x, c, dropout_key=key)
    with torch.autocast("cuda", torch.bfloat16):
        rounded = net(x, c, dropout_key=key)
    assert (rounded.float() - exact).norm() < 0.05 * exact.norm()


def logits(qkv: torch.Tensor, *, qk_norm: bool) -> torch.Tensor:
    """ln of the attention weights, up to a constant for each query, by values that tell the keys apart."""
    channels = qkv.shape[-1] // 3
    attention = Attention(channels, skip_rescale=True, init_scale=1.0, qk_norm=qk_norm)
    qkv[..., 2 * channels :] = torch.eye(channels)  # as many keys as channels
    return attention.attend(qkv).log()


def test_normalized_queries_and_keys_bound_the_logits():
    """|qᵀk|/√C ≤ √C, whatever the weights; a common factor of queries or keys changes nothing."""
    channels = 16
    qkv = torch.randn(2, 1, channels, 3 * channels, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    qkv[..., :channels] = 50 * qkv[..., channels : 2 * channels]  # queries along their keys: the largest logits
    spread = logits(qkv.clone(), qk_norm=True)
    assert (spread.amax(-1) - spread.amin(-1)).max() <= 2 * channels**0.5
    assert (spread.amax(-1) - spread.amin(-1)).max() > channels**0.5
    assert logits(qkv.clone(), qk_norm=False).min() < -20 * channels**0.5  # without it, far beyond the bound
    qkv[..., channels : 2 * channels] *= 1e4
    torch.testing.assert_close(logits(qkv.clone(), qk_norm=True), spread, rtol=1e-6, atol=1e-6)
