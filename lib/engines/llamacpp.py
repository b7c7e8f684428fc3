"""llama-server of llama.cpp: one process a replica, one GGUF file, OpenAI's API on loopback.

Room: engines. It answers 503 while it loads, takes every LLAMA_ARG_* from its environment, and without a model it becomes
a router that says it is healthy and serves nothing: so its environment is made from nothing and its model is always named.
"""

import re
from collections.abc import Mapping, Sequence

from lib.base.errors import Refused
from lib.engines import gguf
from lib.engines.environment import bad_variable, environment
from lib.engines.interface import Launch, classify_by_signs
from lib.model.catalog import EngineRules
from lib.model.cause import Cause
from lib.model.fleet import FaultClass
from lib.model.probe import Probe

_OURS = "llmgw sets it"
_FETCHES = "engines never fetch anything"
_OPENS = "it opens a way to files, programs or settings of the node"
FORBIDDEN: Mapping[str, tuple[str, ...]] = {
    _OURS: ("-m", "--model", "-a", "--alias", "--host", "--port", "--reuse-port", "--api-key", "--api-key-file", "--api-prefix",
            "--ssl-key-file", "--ssl-cert-file", "--metrics", "--ui", "--webui", "--no-ui", "--no-webui", "--offline",
            "--cors-origins", "--cors-methods", "--cors-headers", "--cors-credentials", "--no-cors-credentials", "--log-colors"),
    _FETCHES: ("-mu", "--model-url", "-dr", "--docker-repo", "-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "-hft",
               "--hf-token", "-mmu", "--mmproj-url", "--spec-draft-hf", "-hfd", "-hfrd", "--hf-repo-draft",
               "--embd-gemma-default", "--fim-qwen-1.5b-default", "--fim-qwen-3b-default", "--fim-qwen-7b-default",
               "--fim-qwen-7b-spec", "--fim-qwen-14b-spec", "--fim-qwen-30b-default", "--gpt-oss-20b-default",
               "--gpt-oss-120b-default", "--vision-gemma-4b-default", "--vision-gemma-12b-default"),
    _OPENS: ("--path", "--media-path", "--slot-save-path", "--props", "--tools", "--tools-runtime", "--mcp-servers-config",
             "--mcp-servers-json", "-ag", "--agent", "--ui-mcp-proxy", "--webui-mcp-proxy", "--log-prompts-dir",
             "--ui-config", "--webui-config", "--ui-config-file", "--webui-config-file"),
    "llmgw reads the log to say why a shard died": ("--log-disable", "--log-file"),
    "without its model it is healthy and serves nothing": ("--models-dir", "--models-preset", "--models-max", "--models-autoload",
                                                           "--no-models-autoload", "--sleep-idle-seconds"),
    "its workers would be none of the replica's shards": ("--rpc",),
    "it ends instead of serving": ("-h", "--help", "--usage", "--version", "-cl", "--cache-list", "--completion-bash",
                                   "--list-devices"),
}
_REASON = {flag: reason for reason, flags in FORBIDDEN.items() for flag in flags}
_EMBEDS = ("--embedding", "--embeddings", "--rerank", "--reranking")
_DEFAULTS = (                              # (all spellings, the words used unless the profile has one of the spellings)
    (("-ngl", "--gpu-layers", "--n-gpu-layers"), ("-ngl", "all")),
    (("-fit", "--fit"), ("--fit", "off")),
)
_NO_GPU = (("-dev", "--device"), ("--device", "none"))
_SIGNS = {                                 # the telling ones first: "failed to load model" follows every cause
    "couldn't bind http server socket": FaultClass.RESOURCE,
    "error while loading shared libraries": FaultClass.RESOURCE,
    "failed to allocate": FaultClass.RESOURCE,
    "out of memory": FaultClass.RESOURCE,
    "failed to open gguf file": FaultClass.RESOURCE,
    "invalid argument": FaultClass.CONFIGURATION,
    "error while handling argument": FaultClass.CONFIGURATION,
    "unknown model architecture": FaultClass.CONFIGURATION,
    "error loading model": FaultClass.CONFIGURATION,
    "failed to load model": FaultClass.CONFIGURATION,
}


class LlamaServer:
    """llama.cpp's HTTP server, single shard."""

    name = "llama-server"
    version_argv: tuple[str, ...] = ("--version",)

    def rules(self) -> EngineRules:
        return EngineRules(needs_source=True, multi_shard=False, bad_argument=bad_argument, bad_variable=_bad_variable)

    def parse_version(self, output: str) -> str:
        found = re.search(r"version: (\S.*)", output)
        return found[1].strip() if found else ""

    def command(self, launch: Launch) -> list[str]:
        """The profile's words come before ours: llama-server obeys the last of two."""
        order = launch.order
        if not order.source:
            raise Refused("llama-server is never started without a model", hint="set source in the catalog")
        return [*launch.program, *_defaults(launch), *order.args, "-m", order.source, "-a", launch.served_name,
                "--host", launch.engine_host, "--port", str(order.port), "--metrics", "--no-ui", "--offline",
                "--cors-origins", "localhost", "--log-colors", "off"]

    def environment(self, launch: Launch) -> dict[str, str]:
        return environment(launch, {"LLAMA_API_KEY": launch.order.engine_key, "LLAMA_CACHE": launch.home})

    def serves(self, rank: int) -> bool:
        return rank == 0

    def readiness(self, launch: Launch) -> Probe | None:
        embeds = any(_normalised(word) in _EMBEDS for word in launch.order.args)
        return Probe(served_name=launch.served_name, canary=not embeds)

    def source_fault(self, path: str) -> str:
        return gguf.source_fault(path)

    def classify(self, exit_code: int | None, log_tail: Sequence[str]) -> Cause:
        return classify_by_signs(_SIGNS, exit_code, log_tail)


def bad_argument(args: Sequence[str]) -> str:
    """Why these arguments may not be in a profile, or an empty string. llama-server takes '_' for '-' and knows no '='."""
    for word in args:
        flag = _normalised(word)
        if flag in _REASON:
            return f"{flag} is not for a profile: {_REASON[flag]}"
        if word.startswith("--") and "=" in word:
            return f"{word}: llama-server takes a flag and its value as two words"
    if args and not args[0].startswith("-"):
        return f"{args[0]!r} belongs to no flag"
    return ""


def _bad_variable(name: str) -> str:
    reason = "write it as an argument"
    return bad_variable(name, {"LLAMA_ARG_": reason, "LLAMA_API_KEY": _OURS, "LLAMA_CACHE": _OURS, "HF_TOKEN": _FETCHES,
                               "AIP_": "it would move the port"})


def _normalised(word: str) -> str:
    """A flag as llama-server understands it."""
    return word.partition("=")[0].replace("_", "-") if word.startswith("--") else word


def _defaults(launch: Launch) -> list[str]:
    """--fit off and -ngl all make too little memory an error instead of a slow replica with a smaller context."""
    given = {_normalised(word) for word in launch.order.args}
    table = _DEFAULTS if launch.order.gpus else (*_DEFAULTS, _NO_GPU)
    return [word for spellings, words in table if not given.intersection(spellings) for word in words]
