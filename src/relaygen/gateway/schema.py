"""The bodies that /v1/chat/completions and /v1/completions take, as pydantic models: they check requests, and the OpenAPI
document is made from them. What cannot be honoured is listed, and only its neutral values are taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from relaygen import strategies
from relaygen.errors import UserError

MAX_DEPTH = 64  # of tool definitions and schemas
MAX_STOP_CHARS = 256
MAX_LOGPROBS = 20
MAX_TOKENS = 2**31 - 1


@dataclass(frozen=True)
class Only:
    """A field that is known and cannot be honoured: anything but these values is refused, with the reason."""

    values: tuple[Any, ...]
    why: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"enum": [None, *self.values], "description": f"Not supported: {self.why}."}

    def _check(self, value: Any) -> Any:
        if value is None or any(type(value) is type(v) and value == v for v in self.values):
            return value
        raise PydanticCustomError("unsupported", "is not supported: {why}", {"why": self.why})


def _shallow(value: Any, depth: int = 0) -> Any:
    """Deeper values could not be written as JSON again."""
    if depth > MAX_DEPTH:
        raise PydanticCustomError("too_deep", "is nested deeper than {limit}", {"limit": MAX_DEPTH})
    if isinstance(value, Mapping | list):
        items = cast("Mapping[str, Any] | list[Any]", value)
        if isinstance(items, Mapping) and isinstance(ref := items.get("$ref"), str) and ref[:1] != "#":
            raise PydanticCustomError("remote_ref", "$ref must stay inside, as #/..., and is no address")
        for item in items.values() if isinstance(items, Mapping) else items:
            _shallow(item, depth + 1)
        return items
    return value


def _policy(name: str) -> str:
    try:
        strategies.check(name)
    except UserError as error:
        raise PydanticCustomError("policy", "{why}", {"why": str(error)}) from None
    return name


Policy = Annotated[
    str,
    Field(max_length=64, description=f"One of {', '.join(strategies.POLICIES)}"),
    AfterValidator(_policy),
]
Object = Annotated[dict[str, Any], AfterValidator(_shallow)]
Name = Annotated[str, Field(max_length=256)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class TextPart(_Body):
    type: Literal["text"]
    text: str


class CalledFunction(_Body):
    name: Name
    arguments: str


class PastCall(_Body):
    id: Name
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


_OTHER_MODES = "the models read and write text"


class ChatMessage(_Body):
    """The fields after `tool_call_id` are what clients send back of an answer; the thinking among them goes to the template."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: Name | None = None
    tool_calls: list[PastCall] | None = None
    tool_call_id: Name | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    annotations: Annotated[Any, Only(([],), _OTHER_MODES)] = None
    audio: Annotated[Any, Only((), _OTHER_MODES)] = None
    function_call: Annotated[Any, Only((), "use tool_calls")] = None


class StreamOptions(_Body):
    include_usage: bool | None = None
    include_obfuscation: Annotated[Any, Only((False,), "no padding is added")] = None


_NOT_STRICT = "arguments are written as the model writes them, not held to the schema; leave strict out"


class FunctionDefinition(_Body):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: Object | None = None
    strict: Annotated[Any, Only((False,), _NOT_STRICT)] = None


class Tool(_Body):
    type: Literal["function"]
    function: FunctionDefinition


class JsonSchema(_Body):
    """`strict` makes no difference: the schema is always followed."""

    name: Name
    schema_: Annotated[Object | None, Field(alias="schema")] = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(_Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Extension(_Body):
    """What only RelayGen knows. `segments`: tell who wrote what."""

    profile: Name | None = None
    policy: Policy | None = None
    answer_by: Literal["large", "small"] | None = None
    segments: bool = False


_Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
_PENALTY = "a penalty would begin anew with each turn; use repetition_penalty"
_CHOOSE = "one answer is written, not several to choose from"


class Generate(_Body):
    """What both endpoints share."""

    model: Annotated[str, Field(max_length=256)] = "relaygen"
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: _Stop | Annotated[list[_Stop], Field(max_length=16)] | None = None
    relaygen: Extension | None = None
    presence_penalty: Annotated[Any, Only((0, 0.0), _PENALTY)] = None
    frequency_penalty: Annotated[Any, Only((0, 0.0), _PENALTY)] = None
    logit_bias: Annotated[Any, Only(({},), "engines are not asked for it")] = None
    # Said by clients of their own accord; they change nothing here.
    user: str | None = None


class ChatBody(Generate):
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Annotated[Any, Only(("auto", "none"), "only auto and none are")] = None
    parallel_tool_calls: bool | None = None
    modalities: Annotated[Any, Only((["text"],), _OTHER_MODES)] = None
    audio: Annotated[Any, Only((), _OTHER_MODES)] = None
    prediction: Annotated[Any, Only((), "the answer is always written anew")] = None
    reasoning_effort: Annotated[Any, Only((), "it is the models' own")] = None
    verbosity: Annotated[Any, Only((), "it is the models' own")] = None
    web_search_options: Annotated[Any, Only((), "there is no search")] = None
    functions: Annotated[Any, Only(([],), "use tools")] = None
    function_call: Annotated[Any, Only((), "use tool_choice")] = None
    store: Annotated[Any, Only((False,), "nothing is stored")] = None
    service_tier: Annotated[Any, Only(("auto", "default"), "there is one tier")] = None
    # Said by clients of their own accord; they change nothing here.
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class CompletionBody(Generate):
    """The prompt goes to the models as it is, without the chat template."""

    prompt: (
        Annotated[str, Field(min_length=1)]
        | Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=1)]
    )
    logprobs: Annotated[Any, Only((), "use /v1/chat/completions")] = None
    best_of: Annotated[Any, Only((1,), _CHOOSE)] = None
    echo: Annotated[Any, Only((False,), "only the new text is given")] = None
    suffix: Annotated[Any, Only(("",), "text is only written at the end")] = None
