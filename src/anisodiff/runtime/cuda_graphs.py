"""A function of tensors as a CUDA graph: the host says "again" instead of launching a thousand kernels.

A forward and backward pass of a U-Net is some two thousand launches; where the host needs longer for them than the
GPU for the work, the GPU waits. A graph is recorded once for every combination of shapes and replayed from then on.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

_WARM_UP = 2  # compilation and the choice of algorithms happen before anything is recorded


class Replay:
    """``function``(*tensors) → tensor on CUDA. What it returns is overwritten by the next call.

    ``fresh`` is called before recording: a function that leaves gradients behind must find none, so that they are
    written, not added to.
    """

    def __init__(self, function: Callable[..., Tensor], fresh: Callable[[], None] | None = None) -> None:
        self.function, self.fresh = function, fresh
        self._recorded: dict[tuple[object, ...], tuple[torch.cuda.CUDAGraph, list[Tensor], Tensor]] = {}

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The function's value; gradients, where it leaves any, are those of this call."""
        signature = tuple((x.shape, x.dtype, x.stride()) for x in inputs)
        if signature not in self._recorded:
            # gradients lie where the last recording left them: another one would leave the first writing elsewhere
            assert self.fresh is None or not self._recorded, "a function that leaves gradients has one shape"
            self._recorded[signature] = self._record(inputs)
        graph, places, output = self._recorded[signature]
        for place, x in zip(places, inputs):
            place.copy_(x)
        graph.replay()
        return output

    def _record(self, inputs: tuple[Tensor, ...]) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Tensor]:
        places = [x.detach().clone() for x in inputs]
        fresh = self.fresh or (lambda: None)
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UP):
                fresh()
                self.function(*places)
        torch.cuda.current_stream().wait_stream(aside)
        fresh()
        graph = torch.cuda.CUDAGraph()
        # other threads (loaders) may go on with their own work while this one records
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            output = self.function(*places)
        return graph, places, output


class Replayed(nn.Module):
    """A network without dropout that is replayed: (x [B, …], condition [B]) → its answer."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.replay = Replay(network)

    def forward(
        self, x: Tensor, noise_level: Tensor, labels: Tensor | None = None, dropout_key: Tensor | None = None
    ) -> Tensor:
        """The network's answer, to be used before the next one is asked for."""
        assert dropout_key is None
        return self.replay(x, noise_level) if labels is None else self.replay(x, noise_level, labels)
