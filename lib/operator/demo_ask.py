"""One streamed chat request to a router, as any client would send it, printed as it comes.

Room: operator.
"""

import http.client
import json
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from lib.base.errors import LlmgwError, TimedOut, Unavailable

NOT_YET = (401, 404, 503)                  # what a router says while the newest table is still on its way to it
QUESTION = "Say hello to the operator of this cluster, in one or two sentences."


def ask(router_url: str, api_key: str, model: str, *, patience_s: float = 15.0) -> None:
    """Send it and print the answer. Raises LlmgwError where there is none, or an empty one."""
    deadline = time.monotonic() + patience_s
    while True:
        answer = _post(router_url, api_key, model)
        if answer.status == 200:
            break
        if answer.status not in NOT_YET or time.monotonic() > deadline:
            raise LlmgwError(f"the router answers {answer.status}: {_message(answer.read())}")
        answer.close()
        time.sleep(0.2)
    said = False
    for piece in _pieces(answer):
        said = said or bool(piece.strip())
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
    if not said:
        raise LlmgwError("the answer is empty", hint="see the log of the shard")


def _post(router_url: str, api_key: str, model: str) -> http.client.HTTPResponse:
    parts = urlsplit(router_url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120.0)
    body = {"model": model, "stream": True, "max_tokens": 80, "messages": [{"role": "user", "content": QUESTION}]}
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body),
                           {"authorization": f"Bearer {api_key}", "content-type": "application/json", "connection": "close"})
        return connection.getresponse()
    except OSError as err:
        raise Unavailable(f"{router_url}: {err.strerror or err}", hint="see the router's log") from err


def _pieces(answer: http.client.HTTPResponse) -> Iterator[str]:
    """The text of each event, until [DONE]. A stream that ends without it was cut off."""
    try:
        for raw in answer:
            line = raw.decode("utf-8").strip()
            if line == "data: [DONE]":
                return
            if line.startswith("data: "):
                yield _piece(json.loads(line.removeprefix("data: ")))
    except TimeoutError:
        raise TimedOut("the answer has stopped coming") from None
    except (OSError, http.client.HTTPException, ValueError) as err:
        raise LlmgwError(f"the answer broke off: {err}") from err
    raise LlmgwError("the answer broke off before its end")


def _piece(event: dict[str, Any]) -> str:
    if error := event.get("error"):
        raise LlmgwError(f"the answer broke off: {error.get('message', error)}")
    return "".join(choice["delta"].get("content") or "" for choice in event.get("choices", ()))


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")
