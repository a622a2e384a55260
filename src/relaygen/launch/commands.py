"""The right server commands for a pair of models.

What a relay needs of each engine, and why:

    vLLM          VLLM_MAX_STOP_STRINGS: its 4 are fewer than the cues; --enable-prompt-tokens-details: else nobody knows
                  what the prefix cache brings; the prefix cache itself
    SGLang        --enable-cache-report: the same
    llama-server  a slot of its own for each generation, never swapped out (--no-kv-unified, --no-cache-idle-slots): a hand-over
                  must find its prefix; --jinja: the model's own chat template

Two servers on one GPU share its memory by the models' sizes. vLLM's fraction is of the whole memory, SGLang's of what is free
when it starts: so the large one is started first.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from relaygen.errors import UserError
from relaygen.models.served import Served
from relaygen.types import Author

EngineName = Literal["vllm", "sglang", "llama-server"]
Speculation = Literal["head", "small", "none"]

_MAX_STOPS = "128"
_ALL_OF_A_GPU = 0.9
_LEAST_OF_A_GPU = 0.1
_DRAFT_TOKENS = 3
_INSTALL = {
    "vllm": "pip install vllm (in an environment of its own)",
    "sglang": "pip install 'sglang[all]' (in an environment of its own)",
    "llama-server": "see https://github.com/ggml-org/llama.cpp (brew install llama.cpp, or a release)",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """`context_tokens` per generation; `slots` generations at once (llama-server reserves them). `gpus`: one for both models,
    or one each; None leaves that to the engines, as one GPU."""

    context_tokens: int
    host: str = "127.0.0.1"
    port: int = 8001
    slots: int = 4
    gpus: tuple[str, ...] = ()
    speculation: Speculation = "head"


@dataclass(frozen=True, slots=True)
class Command:
    """`options` are a list of an option with its values each, so that they can be shown a line each."""

    author: Author
    program: tuple[str, ...]
    options: tuple[tuple[str, ...], ...]
    url: str
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    install: str = ""

    @property
    def argv(self) -> list[str]:
        return [*self.program, *(word for option in self.options for word in option)]

    @property
    def health(self) -> str:
        """Answers 200 when the server is ready: of all three engines."""
        return f"{self.url}/health"

    def __str__(self) -> str:
        """For a shell."""
        head = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        lines = [" ".join([*head, *map(shlex.quote, self.program)])]
        lines += [" ".join(map(shlex.quote, option)) for option in self.options]
        return " \\\n    ".join(lines)


@dataclass(frozen=True, slots=True)
class Plan:
    """`notes`: what the reader should know. The large model's server comes first, and is to be ready before the other."""

    commands: tuple[Command, Command]
    notes: tuple[str, ...]

    @property
    def models(self) -> str:
        """The two options that relaygen takes."""
        return " ".join(f"--{c.author.value} {c.url}" for c in self.commands)


def plan(engine: EngineName, large: Served, small: Served, settings: Settings) -> Plan:
    if len(settings.gpus) > 2:
        raise UserError("--gpus takes one GPU for both models, or LARGE,SMALL")
    fractions = _fractions(engine, large, small, settings)
    drafter, notes = _drafter(engine, large, small, settings.speculation)
    if engine != "llama-server" and len(set(settings.gpus)) < 2:
        notes.append(
            f"both models share a GPU: {fractions[0]:g} and {fractions[1]:g} of its memory; with one GPU each give --gpus 0,1"
        )
    build = {"vllm": _vllm, "sglang": _sglang, "llama-server": _llama_server}[engine]
    commands = tuple(
        build(author, model, settings, fraction, drafter if author is Author.LARGE else None)
        for author, model, fraction in zip(Author, (large, small), fractions, strict=True)
    )
    return Plan((commands[0], commands[1]), tuple(notes))


@dataclass(frozen=True, slots=True)
class _Drafter:
    model: str
    is_head: bool


def _drafter(
    engine: str, large: Served, small: Served, wanted: Speculation
) -> tuple[_Drafter | None, list[str]]:
    if wanted == "small":
        return _Drafter(small.gguf if engine == "llama-server" else small.repo, is_head=False), []
    head = large.heads.get(engine)
    if wanted == "head" and head:
        return _Drafter(head, is_head=True), [f"speculative decoding with the Eagle-3 head {head}"]
    if wanted == "head":
        return None, [
            f"no Eagle-3 head of {large.name} for {engine} is known here; --speculate small lets the small model draft"
        ]
    return None, []


def _fractions(engine: str, large: Served, small: Served, settings: Settings) -> tuple[float, float]:
    """Of the memory of a GPU, for each model."""
    if len(set(settings.gpus)) == 2:
        return _ALL_OF_A_GPU, _ALL_OF_A_GPU
    sizes = [_parameters(model) for model in (large, small)]
    by_small = max(_LEAST_OF_A_GPU, _ALL_OF_A_GPU * sizes[1] / sum(sizes))
    by_large = _ALL_OF_A_GPU - by_small
    if engine == "sglang":
        by_small /= 1 - by_large
    return round(by_large, 2), round(by_small, 2)


def _parameters(model: Served) -> float:
    """In billions; of an unknown model by its name, or as if it were one like any other."""
    named = re.findall(r"(\d+(?:\.\d+)?)[bB](?![a-zA-Z])", model.name)
    return model.parameters or (float(named[-1]) if named else 7.0)


def _address(author: Author, settings: Settings) -> tuple[str, str]:
    port = settings.port + (author is Author.SMALL)
    return str(port), f"http://{settings.host}:{port}"


def _visible(author: Author, settings: Settings) -> dict[str, str]:
    if not settings.gpus:
        return {}
    return {"CUDA_VISIBLE_DEVICES": settings.gpus[-1 if author is Author.SMALL else 0]}


def _vllm(
    author: Author, model: Served, settings: Settings, fraction: float, drafter: _Drafter | None
) -> Command:
    port, url = _address(author, settings)
    options: list[tuple[str, ...]] = [
        ("--host", settings.host, "--port", port),
        ("--max-model-len", str(settings.context_tokens)),
        ("--gpu-memory-utilization", f"{fraction:g}"),
        ("--enable-prefix-caching",),
        ("--enable-prompt-tokens-details",),
    ]
    if drafter:
        config: dict[str, Any] = {
            "method": "eagle3" if drafter.is_head else "draft_model",
            "model": drafter.model,
            "num_speculative_tokens": _DRAFT_TOKENS,
        }
        options.append(("--speculative-config", json.dumps(config)))
    env = {"VLLM_MAX_STOP_STRINGS": _MAX_STOPS, **_visible(author, settings)}
    return Command(author, ("vllm", "serve", model.repo), tuple(options), url, env, _INSTALL["vllm"])


def _sglang(
    author: Author, model: Served, settings: Settings, fraction: float, drafter: _Drafter | None
) -> Command:
    port, url = _address(author, settings)
    options: list[tuple[str, ...]] = [
        ("--model-path", model.repo),
        ("--host", settings.host, "--port", port),
        ("--context-length", str(settings.context_tokens)),
        ("--mem-fraction-static", f"{fraction:g}"),
        ("--enable-cache-report",),
    ]
    if drafter:
        options += [
            ("--speculative-algorithm", "EAGLE3" if drafter.is_head else "STANDALONE"),
            ("--speculative-draft-model-path", drafter.model),
            ("--speculative-num-steps", str(_DRAFT_TOKENS)),
            ("--speculative-eagle-topk", "1"),
            ("--speculative-num-draft-tokens", str(_DRAFT_TOKENS + 1)),
        ]
    program = ("python3", "-m", "sglang.launch_server")
    return Command(author, program, tuple(options), url, _visible(author, settings), _INSTALL["sglang"])


def _llama_server(
    author: Author, model: Served, settings: Settings, fraction: float, drafter: _Drafter | None
) -> Command:
    port, url = _address(author, settings)
    options: list[tuple[str, ...]] = [
        _weights("-m", "-hf", model.gguf),
        ("--host", settings.host, "--port", port),
        ("-np", str(settings.slots), "-c", str(settings.context_tokens * settings.slots)),
        ("--no-kv-unified",),
        ("--no-cache-idle-slots",),
        ("--jinja",),
        ("-ngl", "99"),
    ]
    if drafter:
        options += [
            _weights("-md", "-hfd", drafter.model),
            ("--spec-type", "draft-simple"),
            ("--spec-draft-n-max", str(_DRAFT_TOKENS + 1)),
        ]
    env = _visible(author, settings)
    return Command(author, ("llama-server",), tuple(options), url, env, _INSTALL["llama-server"])


def _weights(by_path: str, by_name: str, model: str) -> tuple[str, str]:
    return (by_path if model.endswith(".gguf") else by_name), model
