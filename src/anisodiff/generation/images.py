"""Generated images: a tensor that draws itself."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from anisodiff.io.grids import save_grid


class Images(Tensor):
    """Images [N, C, H, W] in [0, 1]; some of them are `Images` again, all else is computed as of a plain tensor."""

    def save_grid(self, path: str | Path, columns: int | None = None) -> None:
        """Write them as one PNG; nearly square where ``columns`` is not given."""
        save_grid(self, path, columns)

    def __getitem__(self, index: Any) -> Tensor:
        found = super().__getitem__(index)
        return found.as_subclass(Images) if found.dim() == 4 else found

    def detach(self) -> "Images":
        return super().detach().as_subclass(Images)  # torch.nn.Parameter asks for the same class

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        made, learned = self.detach().clone().as_subclass(Images), self.requires_grad
        return Parameter(made, learned) if isinstance(self, Parameter) else made.requires_grad_(learned)

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain: Any = self.as_subclass(Tensor)
        return plain.__reduce_ex__(protocol)  # a file of them needs no anisodiff

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))
