"""What the doctor can find, as a table: each kind with its weight, what it means, and the setting that mends it.

    wrong    the answers would not be what the models would write: mend it first
    useless  relaying would be slower than the large model alone
    costly   it works, and loses time for nothing
    note     a limit to know of

docs/doctor.md shows the same table (a test compares them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Level = Literal["wrong", "useless", "costly", "note"]
SERIOUS: frozenset[Level] = frozenset(("wrong", "useless"))


@dataclass(frozen=True, slots=True)
class Kind:
    """`what` and the cures may hold {fields}. `cures` are by dialect, `cure` is for all others."""

    name: str
    level: Level
    what: str
    cure: str
    cures: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    level: Level
    what: str
    cure: str

    @property
    def is_serious(self) -> bool:
        return self.level in SERIOUS


def finding(name: str, dialect: str = "", **fields: object) -> Finding:
    kind = KINDS[name]
    cure = kind.cures.get(dialect, kind.cure)
    return Finding(name, kind.level, kind.what.format(**fields), cure.format(**fields))


_OWN_TEMPLATE = "give the server the model's own chat template"
_TEMPLATE_FLAGS = {
    "vLLM": "--chat-template FILE with the model's own chat_template.jinja",
    "SGLang": "--chat-template FILE with the model's own chat_template.jinja",
    "llama-server": "--jinja --chat-template-file FILE with the model's own chat_template.jinja",
    "Ollama": "pull the model again, or mend TEMPLATE in its Modelfile",
}

KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "no-answer",
            "wrong",
            "{error}",
            "see that `curl {address}/v1/models` answers; keys are read from RELAYGEN_LARGE_API_KEY and"
            " RELAYGEN_SMALL_API_KEY",
        ),
        Kind(
            "no-template",
            "wrong",
            "the server does not render chats: {error}",
            "serve the model with vLLM, SGLang, llama-server or Ollama",
        ),
        Kind(
            "template-drops-question",
            "wrong",
            "the chat template leaves the user's message out",
            _OWN_TEMPLATE,
            _TEMPLATE_FLAGS,
        ),
        Kind(
            "template-drops-system",
            "note",
            "the chat template leaves the system message out, so --system has no effect",
            "put such instructions into the question, or " + _OWN_TEMPLATE,
        ),
        Kind(
            "template-thinks-twice",
            "wrong",
            "the chat template opens <think> {count} times",
            _OWN_TEMPLATE,
            _TEMPLATE_FLAGS,
        ),
        Kind(
            "template-no-answer",
            "wrong",
            "the prompt ends with the user's message: the chat template does not open the answer",
            _OWN_TEMPLATE + ", with its part for add_generation_prompt",
            _TEMPLATE_FLAGS,
        ),
        Kind(
            "template-of-another-model",
            "wrong",
            "the chat template writes {markers}, which this model does not have as single tokens",
            _OWN_TEMPLATE,
            _TEMPLATE_FLAGS,
        ),
        Kind(
            "double-bos",
            "wrong",
            "the prompt begins with the same token twice: two begin-of-text tokens",
            "take bos_token out of the chat template, or set add_bos_token to false in tokenizer_config.json",
        ),
        Kind(
            "small-context",
            "costly",
            "the context holds {context} tokens, the profile allows answers of {budget}: long ones will be cut",
            "start the server with a longer context, {needed} or more; or lower --max-tokens",
            {
                "vLLM": "--max-model-len {needed}, or lower --max-tokens",
                "SGLang": "--context-length {needed}, or lower --max-tokens",
                "llama-server": "-c {needed} for each of the -np slots, or lower --max-tokens; in this process:"
                " --context {needed}",
                "Ollama": "--context {needed}, or lower --max-tokens",
            },
        ),
        Kind(
            "tiny-context",
            "wrong",
            "the context holds {context} tokens only: most answers will be cut",
            "start the server with a longer context, {needed} or more",
            {
                "vLLM": "--max-model-len {needed}",
                "SGLang": "--context-length {needed}",
                "llama-server": "-c {needed} for each of the -np slots; in this process: --context {needed}",
                "Ollama": "--context {needed}",
            },
        ),
        Kind(
            "prefix-cache-off",
            "useless",
            "a repeated prefix is read again: each hand-over reads the whole text",
            "turn the server's prefix cache on",
            {
                "vLLM": "--enable-prefix-caching (and no --no-enable-prefix-caching)",
                "SGLang": "start it without --disable-radix-cache",
                "llama-server": "start it without --no-cache-prompt; with several users -np N --no-kv-unified"
                " --no-cache-idle-slots",
            },
        ),
        Kind(
            "prefix-cache-unknown",
            "note",
            "the server does not count cached tokens and reads too fast to see it in the time",
            "have the server report cached tokens in `usage`, if it can",
            {"vLLM": "--enable-prompt-tokens-details", "SGLang": "--enable-cache-report"},
        ),
        Kind(
            "stop-cap",
            "costly",
            "at most {limit} stop strings a request: many turns end by closing the connection",
            "start vLLM with the environment variable VLLM_MAX_STOP_STRINGS=128",
        ),
        Kind(
            "text-only",
            "costly",
            "no token ids: the server reads its text anew at each hand-over, and where it cuts tokens may differ",
            "serve the model with vLLM, SGLang or llama-server",
        ),
        Kind(
            "server-sampling",
            "note",
            "top_k, min_p and repetition penalty stay as the server has them: its API has no such fields",
            "serve the model with vLLM, SGLang, llama-server or Ollama",
        ),
        Kind(
            "seed-ignored",
            "note",
            "two equal requests with one seed gave different text: --seed does not repeat an answer",
            "nothing to do unless answers must be repeatable",
            {
                "vLLM": "VLLM_BATCH_INVARIANT=1 in its environment, if answers must be repeatable",
                "SGLang": "--enable-deterministic-inference, if answers must be repeatable",
            },
        ),
        Kind(
            "no-keep-alive",
            "costly",
            "each request needs a new connection",
            "let the proxy in front of the server keep connections (HTTP/1.1; nginx: `keepalive` in the upstream,"
            " `proxy_http_version 1.1`, an empty `Connection` header)",
        ),
        Kind(
            "different-vocabularies",
            "costly",
            "the two models have different vocabularies: segments pass as text, which is tokenised at each hand-over",
            "take two models of one family",
        ),
        Kind(
            "penalty-restarts",
            "note",
            "the profile's repetition penalty of {penalty:g} counts the text of one turn only: SGLang restarts it at each"
            " hand-over",
            "--repeat-penalty 1, or serve the model with vLLM",
        ),
        Kind(
            "never-pays",
            "useless",
            "at these speeds relaying is slower than the large model alone, whatever the small one writes",
            "a small model 5 to 10 times smaller, a server that reads faster (a GPU), or a larger large model",
        ),
    )
}
