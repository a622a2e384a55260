from __future__ import annotations

import contextlib
import os
import shutil
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relaygen import gguf, models
from relaygen.errors import WeightsError

U32, BOOL, STRING, ARRAY, U64 = 4, 7, 8, 9, 10
F32, Q4_K, UNHEARD_OF = 0, 12, 1000
LLAMA: dict[str, tuple[int, Any]] = {
    "general.architecture": (STRING, "llama"),
    "llama.block_count": (U32, 4),
    "llama.context_length": (U32, 8192),
    "llama.embedding_length": (U32, 512),
    "llama.attention.head_count": (U32, 8),
    "llama.attention.head_count_kv": (U32, 2),
    "tokenizer.ggml.tokens": (ARRAY, (STRING, ["a", "bc", "déf", ""])),
    "tokenizer.ggml.scores": (ARRAY, (U32, list(range(5000)))),
    "tokenizer.ggml.add_bos_token": (BOOL, True),
}
TENSORS = [("token_embd.weight", (512, 4), Q4_K, 0), ("output_norm.weight", (512,), F32, 1152)]
DATA_BYTES = 1152 + 512 * 4


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _string(value)
    if kind == ARRAY:
        item, values = value
        return struct.pack("<IQ", item, len(values)) + b"".join(_value(item, each) for each in values)
    return struct.pack({U32: "<I", BOOL: "<?", U64: "<Q"}[kind], value)


def _gguf(
    pairs: dict[str, tuple[int, Any]], tensors: list[tuple[str, tuple[int, ...], int, int]] = TENSORS
) -> bytes:
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    for key, (kind, value) in pairs.items():
        out += _string(key) + struct.pack("<I", kind) + _value(kind, value)
    for name, shape, kind, offset in tensors:
        out += _string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        out += struct.pack("<IQ", kind, offset)
    return out + bytes(-len(out) % 32) + bytes(DATA_BYTES)


def _write(folder: Path, content: bytes) -> Path:
    file = folder / "model.gguf"
    file.write_bytes(content)
    return file


WHOLE = _gguf(LLAMA)


def test_whole_file(tmp_path: Path) -> None:
    content = WHOLE
    header = gguf.check(_write(tmp_path, content))
    assert header.size_bytes == len(content)
    assert (header.architecture, header.context_length, header.block_count) == ("llama", 8192, 4)
    assert (header.embedding_length, header.head_count, header.head_count_kv) == (512, 8, (2, 2, 2, 2))
    assert (header.key_length, header.value_length) == (64, 64)  # not in the file: 512 / 8
    assert header.kv_bytes_per_token == 4 * 2 * (64 + 64) * 2


def test_heads_of_each_block_and_explicit_lengths(tmp_path: Path) -> None:
    pairs = LLAMA | {
        "llama.attention.head_count_kv": (ARRAY, (U32, [2, 0, 2, 0])),  # every other block without attention
        "llama.attention.key_length": (U32, 128),
        "llama.attention.value_length": (U32, 96),
    }
    assert gguf.check(_write(tmp_path, _gguf(pairs))).kv_bytes_per_token == 2 * 2 * (128 + 96) * 2


def test_without_kv_heads_every_head_has_its_own(tmp_path: Path) -> None:
    pairs = {key: value for key, value in LLAMA.items() if not key.endswith("head_count_kv")}
    assert gguf.check(_write(tmp_path, _gguf(pairs))).head_count_kv == (8, 8, 8, 8)


def test_no_prefix_passes_and_none_breaks_the_reader(tmp_path: Path) -> None:
    content = WHOLE
    file = _write(tmp_path, content)
    for size in range(len(content) - 1, -1, -1):
        os.truncate(file, size)
        with pytest.raises(WeightsError, match=r"cut off|not a GGUF file"):
            gguf.check(file)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(st.dictionaries(st.integers(4, 700), st.integers(0, 255), min_size=1, max_size=8))
def test_no_damage_breaks_the_reader(tmp_path: Path, damage: dict[int, int]) -> None:
    content = bytearray(WHOLE)
    for at, byte in damage.items():
        content[at] = byte
    with contextlib.suppress(WeightsError):
        gguf.check(_write(tmp_path, bytes(content)))


def test_says_how_much_is_there(tmp_path: Path) -> None:
    content = WHOLE
    with pytest.raises(
        WeightsError, match=f"holds {len(content) - 7} of {len(content)} bytes; fetch it again"
    ):
        gguf.check(_write(tmp_path, content[:-7]))


def test_a_tensor_type_from_the_future_does_not_refuse_the_file(tmp_path: Path) -> None:
    gguf.check(_write(tmp_path, _gguf(LLAMA, [("t", (512,), UNHEARD_OF, 64)])))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not a GGUF file"),
        (b"PK\3\4 and so on", "not a GGUF file"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "damaged header"),
        (_gguf(LLAMA | {"general.alignment": (U32, 0)}), "damaged header"),
        (_gguf(LLAMA | {"llama.block_count": (U32, 0xFF000004)}), "damaged header"),  # was 34 GB of heads
        (_gguf(LLAMA | {"llama.block_count": (U32, 0)}), "damaged header"),
        (_gguf({"general.architecture": (STRING, "clip")}), r"clip\.block_count: it is not a language model"),
        (_gguf({}), "not a language model"),
    ],
)
def test_what_is_not_a_language_model(tmp_path: Path, content: bytes, complaint: str) -> None:
    with pytest.raises(WeightsError, match=complaint):
        gguf.check(_write(tmp_path, content))


def test_what_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="does not exist"):
        gguf.check(tmp_path / "nothing.gguf")
    with pytest.raises(WeightsError, match="is not a file"):
        gguf.check(tmp_path)


def test_a_large_vocabulary_is_stepped_over_not_built(tmp_path: Path) -> None:
    tokens = [f"token {i}" for i in range(151_936)]
    vocabulary = {"tokenizer.ggml.tokens": (ARRAY, (STRING, tokens)), "merges": (ARRAY, (STRING, tokens))}
    file = _write(tmp_path, _gguf(LLAMA | vocabulary))
    tracemalloc.start()
    try:
        gguf.check(file)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1_000_000  # 300,000 strings would be 20 MB


@pytest.mark.weights
def test_real_weights_whole_and_cut(tmp_path: Path) -> None:
    original = models.pull("smollm2-135m")
    header = gguf.check(original)
    assert (header.architecture, header.context_length, header.block_count) == ("llama", 8192, 30)
    assert (header.embedding_length, header.head_count, header.key_length) == (576, 9, 64)
    assert header.kv_bytes_per_token == 30 * 3 * (64 + 64) * 2
    copy = tmp_path / "cut.gguf"
    shutil.copyfile(original, copy)
    for size in (header.size_bytes - 1, 90_000_000, 3_000_000):
        os.truncate(copy, size)
        with pytest.raises(WeightsError, match=f"holds {size} of {header.size_bytes} bytes"):
            gguf.check(copy)
    for size in (1_000_000, 5_000, 24, 5):
        os.truncate(copy, size)
        with pytest.raises(WeightsError, match="cut off in its header"):
            gguf.check(copy)
