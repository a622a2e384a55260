"""What inference servers load by name: the models of the built-in profiles as they lie on the hub.

Heads are Eagle-3 drafters for the large models, by engine, since their file layouts differ. Sources, seen in December 2026:
huggingface.co/RedHatAI (made with vLLM's `speculators`, for vLLM) and huggingface.co/AngelSlim (Tencent; for SGLang). There is
none that we know of for the DeepSeek distillates and for Qwen2.5-Coder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final

from relaygen.errors import UserError
from relaygen.models.catalogue import PAIRS


@dataclass(frozen=True, slots=True)
class Served:
    """`gguf` is REPO:QUANTISATION, as llama-server's -hf takes it; `parameters` in billions; `heads` by engine."""

    name: str
    repo: str
    gguf: str
    parameters: float
    heads: Mapping[str, str] = field(default_factory=dict[str, str])


SERVED: Final = {
    model.name: model
    for model in (
        Served(
            "qwen3-32b",
            "Qwen/Qwen3-32B",
            "Qwen/Qwen3-32B-GGUF:Q4_K_M",
            32.8,
            {"vllm": "RedHatAI/Qwen3-32B-speculator.eagle3", "sglang": "AngelSlim/Qwen3-32B_eagle3"},
        ),
        Served(
            "qwen3-8b",
            "Qwen/Qwen3-8B",
            "Qwen/Qwen3-8B-GGUF:Q4_K_M",
            8.2,
            {"vllm": "RedHatAI/Qwen3-8B-Thinking-speculator.eagle3", "sglang": "AngelSlim/Qwen3-8B_eagle3"},
        ),
        Served("qwen3-1.7b", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-1.7B-GGUF:Q8_0", 2.0),
        Served("qwen3-0.6b", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B-GGUF:Q8_0", 0.8),
        Served(
            "r1-distill-qwen-32b",
            "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
            "unsloth/DeepSeek-R1-Distill-Qwen-32B-GGUF:Q4_K_M",
            32.8,
        ),
        Served(
            "r1-distill-qwen-1.5b",
            "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
            "unsloth/DeepSeek-R1-Distill-Qwen-1.5B-GGUF:Q8_0",
            1.8,
        ),
        Served(
            "qwen2.5-coder-1.5b",
            "Qwen/Qwen2.5-Coder-1.5B-Instruct",
            "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M",
            1.5,
        ),
        Served(
            "qwen2.5-coder-0.5b",
            "Qwen/Qwen2.5-Coder-0.5B-Instruct",
            "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q4_K_M",
            0.5,
        ),
    )
}

# By the names of the pairs of the catalogue, and of the profiles.
_PAIRS: Final = {
    **{pair.name: (pair.large, pair.small) for pair in PAIRS.values()},
    "qwen3-32b+qwen3-1.7b": ("qwen3-32b", "qwen3-1.7b"),
    "qwen2.5-coder-1.5b+0.5b": ("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"),
    "r1-distill-qwen-32b+1.5b": ("r1-distill-qwen-32b", "r1-distill-qwen-1.5b"),
}


def find_served_pair(name: str) -> tuple[Served, Served]:
    """(large, small) for the name of a pair or of a profile, or for LARGE/SMALL. UserError, with what comes near."""
    large, slash, small = name.lower().partition("/")
    if slash and large in SERVED and small in SERVED:
        return SERVED[large], SERVED[small]
    if found := _PAIRS.get(name.lower()):
        return SERVED[found[0]], SERVED[found[1]]
    known = [*_PAIRS, *SERVED] if slash else list(_PAIRS)
    near = [n for part in (large, small) if part for n in get_close_matches(part, known, n=2, cutoff=0.5)]
    advice = (
        f"did you mean {' or '.join(dict.fromkeys(near))}?" if near else f"there are {', '.join(_PAIRS)}."
    )
    raise UserError(f'no pair is called "{name}"; {advice} Any two models: --large NAME --small NAME')


def named(model: str) -> Served:
    """A model that is in no table, by its name on the hub or its path. How large it is, is read from its name."""
    return SERVED.get(model.lower()) or Served(model, model, model, 0.0)
