"""Stateless random words: a hash of a key and a counter, the same on every device, in any order, in any batch.

SplitMix64's finaliser (Steele et al. 2014) and Wellons' 32-bit one (2018), in wrapping integer arithmetic. What is
drawn by key can be drawn again: after a restart, on another number of devices, for one sample alone.
"""

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
"""2⁶⁴/φ, odd: its multiples are spread evenly."""


def signed(value: int, bits: int) -> int:
    """The integer in [−2^(bits−1), 2^(bits−1)) equal to value modulo 2^bits: torch integers are signed."""
    value %= 1 << bits
    return value - (1 << bits) if value >> (bits - 1) else value


def shift_right(z: Tensor, count: int, bits: int) -> Tensor:
    """Logical shift: torch's >> repeats the sign bit, which is masked away."""
    return (z >> count) & ((1 << (bits - count)) - 1)


def mix64(z: Tensor) -> Tensor:
    """Finaliser of SplitMix64, a bijection of the 64-bit integers: int64 → int64, wrapping."""
    z = (z ^ shift_right(z, 30, 64)) * signed(0xBF58476D1CE4E5B9, 64)
    z = (z ^ shift_right(z, 27, 64)) * signed(0x94D049BB133111EB, 64)
    return z ^ shift_right(z, 31, 64)


def mix32(z: Tensor) -> Tensor:
    """Wellons' low-bias finaliser, a bijection of the 32-bit integers: int32 → int32, wrapping."""
    z = (z ^ shift_right(z, 16, 32)) * signed(0x7FEB352D, 32)
    z = (z ^ shift_right(z, 15, 32)) * signed(0x846CA68B, 32)
    return z ^ shift_right(z, 16, 32)


def _mix64_number(z: int) -> int:
    """`mix64` of one Python number, for the parts of a key that are no tensors: nothing is sent to a device."""
    z %= 1 << 64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % (1 << 64)
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % (1 << 64)
    return z ^ (z >> 31)


def combine(*parts: int | Tensor) -> Tensor:
    """One int64 key from several: hashed in turn, so that (a, b) and (b, a) differ; tensors broadcast."""
    key: int | Tensor = 0
    for part in parts:
        inner = mix64(part.to(torch.int64)) if isinstance(part, Tensor) else signed(_mix64_number(part) + GOLDEN, 64)
        if isinstance(part, Tensor):
            inner = inner + signed(GOLDEN, 64)
        if isinstance(key, Tensor):
            key = mix64(key + inner)
        elif isinstance(inner, Tensor):
            key = mix64(inner + signed(key, 64))
        else:
            key = _mix64_number(key + inner)
    return key if isinstance(key, Tensor) else torch.tensor(signed(key, 64), dtype=torch.int64)
