"""The flags of the sim engine: what a profile may choose, what llmgw sets, and the faults it can be told to show.

Room: engines. Pure: text to types.
"""

import argparse
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from lib.base.address import parse_host_port
from lib.base.config import did_you_mean
from lib.base.errors import UsageError

KEY_VARIABLE = "LLMGW_ENGINE_KEY"          # in the environment: argv can be read by everybody on the machine
LEADER, WORKER, ANY = "rank 0", "workers", "every rank"


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A way to misbehave: on which ranks it makes sense, and what its value may be (`value` None: it has none)."""

    where: str
    help: str
    value: str | None = None               # regular expression
    default: str | None = None             # where the value may be left out


_NUMBER, _COUNT = r"\d+(\.\d+)?", r"\d+"
FAULTS: Mapping[str, FaultKind] = {
    "loading-refuse": FaultKind(LEADER, "refuse connections while loading, as vLLM does (this is the default)"),
    "loading-503": FaultKind(LEADER, "answer 503 to everything while loading, as llama-server does"),
    "bind-then-listen": FaultKind(LEADER, "bind the port before loading and listen after it, as vLLM does"),
    "health-lies": FaultKind(LEADER, "say 200 to /health while loading and list no model, as a llama-server without a model"),
    "follower-200": FaultKind(WORKER, "bind --host and --port on workers and say 200 to /health, as SGLang's followers do"),
    "no-join": FaultKind(WORKER, "start, and never come to the rendezvous"),
    "load-exit": FaultKind(ANY, "exit with CODE instead of getting ready", _COUNT),
    "exit-0-after": FaultKind(ANY, "exit with status 0, SECONDS after getting ready, as vLLM does when its engine dies", _NUMBER),
    "exit": FaultKind(ANY, "exit with CODE, SECONDS after getting ready: exit=CODE@SECONDS", rf"{_COUNT}@{_NUMBER}"),
    "ignore-term": FaultKind(ANY, "swallow SIGTERM, as SGLang's followers do"),
    "orphan": FaultKind(ANY, "leave a child behind on SIGKILL, as vLLM does; orphan=detached: in a session of its own",
                        "detached", ""),
    "hang-after": FaultKind(LEADER, "never answer again after N requests, with /health at 200", _COUNT),
    "error-chunk": FaultKind(LEADER, "an error inside a 200 stream after N tokens (3), then [DONE], as vLLM does", _COUNT, "3"),
    "error-chunk-no-done": FaultKind(LEADER, "the same without [DONE], as llama-server does", _COUNT, "3"),
    "truncate-after": FaultKind(LEADER, "cut the connection after N tokens", _COUNT),
    "comments": FaultKind(LEADER, "a comment line before every chunk of a stream"),
    "first-byte-delay": FaultKind(LEADER, "wait SECONDS before the first byte of an answer", _NUMBER),
    "idle-close": FaultKind(LEADER, "close an idle connection after SECONDS instead of 5", _NUMBER),
    "die-on-abort": FaultKind(LEADER, "die with status 134 when a client goes away, as llama.cpp does on a lost peer"),
    "slow": FaultKind(LEADER, "take FACTOR times as long for each token", _NUMBER),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault asked for; `rank` None means every rank where it makes sense."""

    name: str
    value: str
    rank: int | None = None

    def strikes(self, rank: int) -> bool:
        if self.rank is not None:
            return self.rank == rank
        where = FAULTS[self.name].where
        return where == ANY or (where == LEADER) == (rank == 0)


@dataclass(frozen=True, slots=True)
class Settings:
    """How one sim process is to behave. Times in seconds; a loss time of None means that the loss is never noticed."""

    names: tuple[str, ...]
    host: str
    port: int
    rank: int
    shards: int
    rendezvous: tuple[str, int]            # port 0: none
    group: str
    token_rate: float
    first_token_delay: float
    load_time: float
    slots: int
    max_queue: int | None
    context: int
    answer_tokens: int
    embedding_size: int
    join_timeout: float
    worker_loss: float | None
    leader_loss: float | None
    faults: Mapping[str, str]              # of this rank

    @property
    def serves(self) -> bool:
        return self.rank == 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parse_settings(argv: Sequence[str]) -> Settings:
    """All flags of a process; UsageError in one line. --help prints and raises SystemExit, as argparse does."""
    parser = _Parser("sim-engine", allow_abbrev=False, parents=[_knobs()],
                     description="An engine that holds no model: it counts words, keeps time and misbehaves on demand.",
                     epilog="faults: " + "; ".join(f"{name} ({kind.where}): {kind.help}" for name, kind in FAULTS.items()))
    _add_wiring(parser)
    given = _parse(parser, argv)
    if given.shards > 1 and not given.rendezvous[1]:
        raise UsageError(f"--shards {given.shards} needs --rendezvous ADDRESS:PORT")
    if given.rank >= given.shards:
        raise UsageError(f"--rank {given.rank} is not below --shards {given.shards}")
    faults = {fault.name: fault.value for some in given.fault for fault in some if fault.strikes(given.rank)}
    return Settings(
        tuple(given.model_name), given.host, given.port, given.rank, given.shards, given.rendezvous, given.group,
        given.token_rate, given.first_token_delay, given.load_time, given.slots, given.max_queue, given.context,
        given.answer_tokens, given.embedding_size, given.join_timeout, given.worker_loss, given.leader_loss, faults)


def bad_argument(args: Sequence[str]) -> str:
    """Why these arguments may not be in a profile, or an empty string."""
    wiring = _Parser(add_help=False)
    _add_wiring(wiring)
    for word in args:
        if (flag := word.partition("=")[0]) in wiring._option_string_actions or flag in ("-h", "--help"):
            return f"{flag} is not for a profile: llmgw sets it"
    try:
        _parse(_knobs(), args)
    except UsageError as err:
        return f"{err} ({err.hint})" if err.hint else str(err)
    return ""


def parse_faults(text: str) -> list[Fault]:
    """A comma list of [RANK:]NAME[=VALUE]."""
    return [_fault(word) for word in text.split(",")]


def _fault(word: str) -> Fault:
    match = re.fullmatch(r"(?:(\d+):)?([a-z0-9-]+)(?:=(.*))?", word.strip())
    if not match or match[2] not in FAULTS:
        hint = did_you_mean(match[2], FAULTS) if match else ""
        raise argparse.ArgumentTypeError(f"there is no fault {word!r}{'; ' if hint else ''}{hint}")
    rank, name, value = match[1], match[2], match[3]
    kind = FAULTS[name]
    if value is None and kind.value is not None and kind.default is None:
        raise argparse.ArgumentTypeError(f"{name} needs a value: {kind.help}")
    if value is not None and (kind.value is None or not re.fullmatch(kind.value, value)):
        raise argparse.ArgumentTypeError(f"{value!r} is no value for {name}: {kind.help}")
    return Fault(name, (kind.default or "") if value is None else value, None if rank is None else int(rank))


def _parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    given, unknown = parser.parse_known_args(list(argv))
    if unknown:
        word = unknown[0].partition("=")[0]
        raise UsageError(f"the sim engine has no argument {word!r}", hint=did_you_mean(word, parser._option_string_actions))
    return given


def _knobs() -> _Parser:
    """What a profile may choose."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    for flag, kind, default, help_text in (
            ("--token-rate", _number(0), 50.0, "tokens per second of one stream; 0: as fast as it goes"),
            ("--first-token-delay", _number(0), 0.05, "seconds before the first token"),
            ("--load-time", _number(0), 0.2, "seconds of loading, after the rendezvous"),
            ("--slots", _whole(1), 8, "requests worked on at once; further ones wait"),
            ("--max-queue", _whole(0), None, "how many may wait before others get 503; no limit unless given"),
            ("--context", _whole(1), 4096, "prompt and answer together, in tokens"),
            ("--answer-tokens", _whole(0), 0, "length of an answer that nothing cuts short; 0: of the sentences it has to say"),
            ("--embedding-size", _whole(1), 64, "numbers in an embedding"),
            ("--gpu-memory-utilization", _number(0, 1), 0.9, "taken and ignored"),
            ("--join-timeout", _number(0), 600.0, "seconds to wait at the rendezvous"),
            ("--worker-loss", _seconds_or_never, 1.0, "seconds after which rank 0 dies of a lost worker, or never"),
            ("--leader-loss", _seconds_or_never, 1.0, "seconds after which a worker dies of a lost rank 0, or never")):
        parser.add_argument(flag, type=kind, default=default, help=help_text)
    parser.add_argument("--fault", type=parse_faults, action="append", default=[], metavar="[RANK:]NAME[=VALUE],...",
                        help="misbehave; may be given again")
    return parser


def _add_wiring(parser: argparse.ArgumentParser) -> None:
    """What llmgw sets."""
    parser.add_argument("--model-name", action="append", default=[], help="a name the model answers to; may be given again")
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on")
    parser.add_argument("--port", type=_whole(0), default=0, help="port to serve on; 0: any free one, named in the log")
    parser.add_argument("--rank", type=_whole(0), default=0)
    parser.add_argument("--shards", type=_whole(1), default=1, help="how many processes make one engine")
    parser.add_argument("--rendezvous", type=_endpoint, default=("", 0), metavar="ADDRESS:PORT", help="where rank 0 is met")
    parser.add_argument("--group", default="sim", help="shards of different groups refuse each other")


def _number(low: float, high: float = math.inf) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = float(text)
        if not low <= value <= high or not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"{text} is not within {low:g} and {high:g}")
        return value
    return number


def _whole(low: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text) or int(text) < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {low}")
        return int(text)
    return whole


def _seconds_or_never(text: str) -> float | None:
    return None if text == "never" else _number(0)(text)


def _endpoint(text: str) -> tuple[str, int]:
    if (address := parse_host_port(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not ADDRESS:PORT")
    return address
