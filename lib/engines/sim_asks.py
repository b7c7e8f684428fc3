"""What a client asks of the sim engine: bodies checked and turned into types, refusals in OpenAI's shape.

Room: engines. Pure.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lib.engines import sim_text

JSON = dict[str, Any]


class ApiError(Exception):
    """A refusal as the client sees it."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.param = status, kind, param

    @property
    def body(self) -> JSON:
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}}


def bad_request(message: str, param: str | None = None) -> ApiError:
    """400."""
    return ApiError(400, "BadRequestError", message, param)


@dataclass(frozen=True, slots=True)
class Ask:
    """A completion asked for, already answered in full: what remains is to take the time it takes."""

    chat: bool
    model: str
    prompt_tokens: int
    choices: tuple[sim_text.Choice, ...]
    stream: bool
    include_usage: bool

    @property
    def steps(self) -> int:
        return max(len(choice.tokens) for choice in self.choices)


def parse_json(body: bytes) -> JSON:
    """The object in a request body."""
    try:
        value = json.loads(body)
    except ValueError as err:
        raise bad_request(f"the body is not JSON: {err}") from None
    if not isinstance(value, dict):
        raise bad_request("the body is not a JSON object")
    return value


def model_of(body: JSON, names: Sequence[str]) -> str:
    """The name asked for, or the first one where none is."""
    model = body.get("model") or names[0]
    if model not in names:
        raise ApiError(404, "NotFoundError", f"The model {model!r} does not exist.", "model")
    return str(model)


def parse_ask(body: JSON, *, chat: bool, names: Sequence[str], context: int, length: int) -> Ask:
    """A chat or text completion. `length` is how long an answer is that nothing cuts short (0: its sentences)."""
    model = model_of(body, names)
    prompt, gist = prompt_of(body, chat=chat)
    prompt_tokens = max(1, len(sim_text.split(prompt)))
    limit = _limit(body, chat, context, prompt_tokens)
    choices = tuple(
        sim_text.choose(sim_text.answer(model, gist, variant), length=length, limit=limit,
                        minimum=min(limit, _whole(body, "min_tokens", 0)), endless=_flag(body, "ignore_eos"), stops=_stops(body))
        for variant in range(_whole(body, "n", 1, low=1, high=16)))
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise bad_request("stream_options must be an object", "stream_options")
    return Ask(chat, model, prompt_tokens, choices, _flag(body, "stream"), bool(options.get("include_usage")))


def prompt_of(body: JSON, *, chat: bool) -> tuple[str, str]:
    """The whole prompt, and what of it to repeat in the answer."""
    return _chat_prompt(body) if chat else (_text_prompt(body),) * 2


def texts(body: JSON, field: str) -> list[str]:
    """A string, strings, token numbers or lists of them: what /v1/embeddings takes."""
    value = body.get(field)
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
        return [_of_numbers(value)]
    if isinstance(value, list) and value and all(isinstance(item, (str, list)) for item in value):
        return [item if isinstance(item, str) else _of_numbers(item) for item in value]
    raise bad_request(f"{field} must be a text, texts or token numbers", field)


def _of_numbers(numbers: Sequence[Any]) -> str:
    return " ".join(str(number) for number in numbers)


def _limit(body: JSON, chat: bool, context: int, prompt_tokens: int) -> int:
    """How many tokens the answer may have. 400 where prompt and answer do not fit into the context."""
    field = "max_completion_tokens" if chat and body.get("max_completion_tokens") is not None else "max_tokens"
    room = context - prompt_tokens
    wanted = _whole(body, field, max(room, 0) if chat else min(16, max(room, 0)), low=1 if body.get(field) is not None else 0)
    if room < 1 or wanted > room:
        raise bad_request(f"The context holds {context} tokens; the prompt has {prompt_tokens} and {wanted} are asked for.",
                          field if room >= 1 else "prompt")
    return wanted


def _chat_prompt(body: JSON) -> tuple[str, str]:
    """All messages as one text, and the last thing the user said."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise bad_request("messages must be a list of objects", "messages")
    said = [(str(message.get("role", "")), _content(message)) for message in messages]
    last = next((text for role, text in reversed(said) if role == "user"), said[-1][1])
    return "\n".join(f"{role}: {text}" for role, text in said), last


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if content is None or isinstance(content, str):
        return content or ""
    raise bad_request("content must be a text or a list of parts", "messages")


def _text_prompt(body: JSON) -> str:
    prompts = texts(body, "prompt")
    if len(prompts) > 1:
        raise bad_request("the sim engine takes one prompt a request", "prompt")
    return prompts[0]


def _stops(body: JSON) -> tuple[str, ...]:
    stop = body.get("stop") or ()
    words = (stop,) if isinstance(stop, str) else stop
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise bad_request("stop must be a text or texts", "stop")
    return tuple(words)


def _whole(body: JSON, field: str, default: int, *, low: int = 0, high: int = 10**9) -> int:
    value = body.get(field)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise bad_request(f"{field} must be a whole number of at least {low}", field)
    return value


def _flag(body: JSON, field: str) -> bool:
    value = body.get(field) or False
    if not isinstance(value, bool):
        raise bad_request(f"{field} must be true or false", field)
    return value
