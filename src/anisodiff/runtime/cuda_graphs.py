"""A function of tensors as a CUDA graph: the host says "again" instead of launching a thousand kernels.

A forward and backward pass of a U-Net is some two thousand launches; where the host needs longer for them than the
GPU for the work, the GPU waits. A graph is recorded once for every combination of shapes and replayed from then on.
What the function does on the host (branches, Python's numbers) is done once, when it is recorded.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

MOST = 8
"""Recordings that are kept of a function; each has memory of its own."""


class Replay:
    """``function``(*tensors) → tensor on CUDA. What it returns is overwritten by the next call.

    Of many combinations of shapes the `MOST` used last are kept.

    ``fresh`` is called before recording: a function that leaves gradients behind must find none, so that they are
    written, not added to. A function that cannot be recorded (it waits for the device) is called each time, and
    ``say`` is told once.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        fresh: Callable[[], None] | None = None,
        say: Callable[[str], None] = warnings.warn,
    ) -> None:
        self.function, self.fresh, self.say = function, fresh, say
        self.refused = False
        """Whether the function could not be recorded."""
        self._recorded: dict[tuple[object, ...], tuple[torch.cuda.CUDAGraph, list[Tensor], Tensor]] = {}
        self._unfinished: list[torch.cuda.CUDAGraph] = []  # torch's allocator still refers to them

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The function's value; gradients, where it leaves any, are those of this call."""
        signature = tuple((x.shape, x.dtype, x.stride()) for x in inputs)
        if signature not in self._recorded and not self.refused:
            # gradients lie where the last recording left them: another one would leave the first writing elsewhere
            assert self.fresh is None or not self._recorded, "a function that leaves gradients has one shape"
            while len(self._recorded) >= MOST:
                del self._recorded[next(iter(self._recorded))]
            self._record(signature, inputs)
        if self.refused:
            self._begin()
            return self.function(*inputs)
        graph, places, output = self._recorded[signature] = self._recorded.pop(signature)  # now the last one used
        for place, x in zip(places, inputs):
            place.copy_(x)
        graph.replay()
        return output

    def _begin(self) -> None:
        if self.fresh is not None:
            self.fresh()

    def _record(self, signature: tuple[object, ...], inputs: tuple[Tensor, ...]) -> None:
        places = [x.detach().clone() for x in inputs]
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(here)
        try:
            with torch.cuda.stream(aside):
                self._begin()
                self.function(*places)  # kernels are compiled and algorithms chosen; errors of its own are raised
            with _recordable():
                with torch.cuda.stream(aside), _never_waiting():
                    self._begin()
                    self.function(*places)
                here.wait_stream(aside)
                self._begin()
                self._recorded[signature] = self._capture(places)
        except _Unrecordable as error:
            self.refused = True
            reason = str(error).partition("\n")[0]
            self.say(f"the network cannot be recorded as a CUDA graph, its kernels are launched one by one: {reason}")
        finally:
            here.wait_stream(aside)

    def _capture(self, places: list[Tensor]) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Tensor]:
        graph, pool, here = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle(), torch.cuda.current_stream()
        try:
            # other threads (loaders) may go on with their own work while this one records
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                output = self.function(*places)
        except RuntimeError:
            # torch leaves its stream and its memory pool as they were in the middle of the recording
            torch.cuda.set_stream(here)
            self._unfinished.append(graph)
            with contextlib.suppress(AttributeError, RuntimeError):
                torch._C._cuda_endAllocateToPool(here.device_index, pool)
            raise
        return graph, places, output


class _Unrecordable(Exception):
    """Of a function that runs, but not while it is recorded."""


@contextlib.contextmanager
def _recordable() -> Iterator[None]:
    """Tell what cannot be recorded from a lack of memory."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise _Unrecordable(str(error)) from error


@contextlib.contextmanager
def _never_waiting() -> Iterator[None]:
    """Waiting for the device is an error: found here it leaves no trace, in the middle of a recording it does."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls this mode a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


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
        if x.requires_grad and torch.is_grad_enabled():  # a recording has no backward pass
            answer: Tensor = self.network(x, noise_level, labels)
            return answer
        return self.replay(x, noise_level) if labels is None else self.replay(x, noise_level, labels)
