"""Reads the header of a GGUF file: is it whole, and how much memory will it want?

Layout, all little-endian: magic, version, number of tensors, number of metadata pairs; the pairs; one record
for each tensor; padding; the tensors' data. The vocabulary lies among the pairs as arrays of 150,000 strings:
those are stepped over, never built. Tensors are not read, only their place is compared with the file's size.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final, cast

from relaygen.errors import WeightsError

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)  # 1 had 32-bit counts and was gone within weeks
MAX_ITEMS: Final = 1 << 24  # no count in a real header comes near; a damaged one must not keep us busy
MAX_BLOCKS: Final = 4096
MAX_DIMENSIONS: Final = 8
F16_BYTES: Final = 2

STRING, ARRAY = 8, 9
SCALARS: Final = {
    kind: struct.Struct(f"<{code}")
    for kind, code in [*enumerate("BbHhIif?"), (10, "Q"), (11, "q"), (12, "d")]
}
U32: Final = SCALARS[4]
U64: Final = SCALARS[10]

# ggml type -> (elements in a block, bytes of a block). A tensor of a type that is not in the table counts as
# empty: then a cut inside the very last tensor may go unnoticed here.
BLOCKS: Final = {
    **{
        0: (1, 4),
        1: (1, 2),
        24: (1, 1),
        25: (1, 2),
        26: (1, 4),
        27: (1, 8),
        28: (1, 8),
        30: (1, 2),
    },  # plain numbers
    **{
        2: (32, 18),
        3: (32, 20),
        6: (32, 22),
        7: (32, 24),
        8: (32, 34),
        20: (32, 18),
        39: (32, 17),
    },  # Q4_0 .. MXFP4
    **{10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210)},  # Q2_K .. Q6_K
    **{
        16: (256, 66),
        17: (256, 74),
        18: (256, 98),
        19: (256, 50),
        21: (256, 110),
        22: (256, 82),
    },  # IQ2, IQ3, IQ1_S
    **{23: (256, 136), 29: (256, 56), 34: (256, 54), 35: (256, 66)},  # IQ4_XS, IQ1_M, TQ1_0, TQ2_0
}


@dataclass(frozen=True, slots=True)
class Gguf:
    path: Path
    size_bytes: int
    architecture: str
    context_length: int
    block_count: int
    embedding_length: int
    head_count: int
    head_count_kv: tuple[int, ...]  # one for each block
    key_length: int
    value_length: int

    @property
    def kv_bytes_per_token(self) -> int:
        """Cache memory for one token at f16. Models with sliding windows or compressed keys need less."""
        return sum(self.head_count_kv) * (self.key_length + self.value_length) * F16_BYTES


def check(path: Path) -> Gguf:
    """WeightsError unless the file is a whole GGUF language model."""
    try:
        if not path.is_file():
            raise WeightsError(f"{path} is not a file" if path.exists() else f"{path} does not exist")
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise WeightsError(f"{path} is not a GGUF file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                return _Reader(path, view).read()
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror or error}") from error


class _Reader:
    def __init__(self, path: Path, view: mmap.mmap) -> None:
        self.path = path
        self.view = view
        self.at = len(MAGIC)

    def read(self) -> Gguf:
        try:
            version = self.number(U32)
            if version not in VERSIONS:
                raise self.error(f"is GGUF version {version}; known are 2 and 3, little-endian")
            num_tensors, num_pairs = self.count(), self.count()
            pairs = {self.string(): self.value(self.number(U32)) for _ in range(num_pairs)}
            end = self.data_end(num_tensors, pairs.get("general.alignment", 32))
        except (struct.error, OverflowError):  # a length points behind the end of the file
            raise self.error(
                f"is cut off in its header: it holds {len(self.view)} bytes; fetch it again"
            ) from None
        except (UnicodeDecodeError, KeyError, TypeError, ZeroDivisionError):
            raise self.error("has a damaged header; fetch it again") from None
        if len(self.view) < end:
            raise self.error(f"is cut off: it holds {len(self.view)} of {end} bytes; fetch it again")
        return self.model(pairs)

    def error(self, what: str) -> WeightsError:
        return WeightsError(f"{self.path} {what}")

    def number(self, kind: struct.Struct) -> Any:
        (value,) = kind.unpack_from(self.view, self.at)
        self.at += kind.size
        return value

    def count(self) -> int:
        count = self.number(U64)
        if count > MAX_ITEMS:
            raise self.error("has a damaged header; fetch it again")
        return count

    def string(self) -> str:
        length, start = self.number(U64), self.at
        self.at += length
        if self.at > len(self.view):
            raise struct.error
        return self.view[start : self.at].decode()

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array(self.number(U32), self.count())
        return self.number(SCALARS[kind])

    def array(self, kind: int, count: int) -> tuple[Any, ...] | None:
        """Numbers for each block are read; long arrays and strings are stepped over."""
        if kind == STRING:
            at, view, unpack = self.at, self.view, U64.unpack_from
            for _ in range(count):
                at += U64.size + unpack(view, at)[0]
            self.at = at
            return None
        scalar = SCALARS[kind]  # arrays of arrays: allowed by the format, written by nobody
        if count <= MAX_BLOCKS:
            return tuple(self.number(scalar) for _ in range(count))
        self.at += count * scalar.size
        return None

    def data_end(self, num_tensors: int, alignment: int) -> int:
        """Where the last tensor ends, and so the least size of the whole file."""
        data_bytes = 0
        for _ in range(num_tensors):
            self.string()
            num_dimensions = self.number(U32)
            if num_dimensions > MAX_DIMENSIONS:
                raise self.error("has a damaged header; fetch it again")
            elements = prod(self.number(U64) for _ in range(num_dimensions))
            block_elements, block_bytes = BLOCKS.get(self.number(U32), (1, 0))
            data_bytes = max(data_bytes, self.number(U64) + elements // block_elements * block_bytes)
        return -(-self.at // alignment) * alignment + data_bytes

    def model(self, pairs: dict[str, Any]) -> Gguf:
        architecture = pairs.get("general.architecture")
        if not isinstance(architecture, str) or len(architecture) > 64 or not architecture.isprintable():
            raise self.error("does not say its architecture: it is not a language model")

        def number(key: str) -> int:
            value = pairs.get(f"{architecture}.{key}")
            if not isinstance(value, int):
                raise self.error(f"does not say {architecture}.{key}: it is not a language model")
            return value

        def optional(key: str, default: int) -> int:
            return number(key) if f"{architecture}.{key}" in pairs else default

        def per_block(key: str, default: tuple[int, ...]) -> tuple[int, ...]:
            value = pairs.get(f"{architecture}.{key}", default)
            return cast(tuple[int, ...], value) if isinstance(value, tuple) else (number(key),) * num_blocks

        num_blocks, embedding_length = number("block_count"), number("embedding_length")
        if not 0 < num_blocks <= MAX_BLOCKS:
            raise self.error("has a damaged header; fetch it again")
        heads = per_block("attention.head_count", (0,))
        head_count = max(heads, default=0)
        head_length = embedding_length // head_count if head_count else 0  # no heads: no attention, no cache
        return Gguf(
            path=self.path,
            size_bytes=len(self.view),
            architecture=architecture,
            context_length=number("context_length"),
            block_count=num_blocks,
            embedding_length=embedding_length,
            head_count=head_count,
            head_count_kv=per_block("attention.head_count_kv", heads),
            key_length=optional("attention.key_length", head_length),
            value_length=optional("attention.value_length", head_length),
        )
