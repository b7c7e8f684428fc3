"""llama-server: its command line, what it refuses, how its death is read. The log lines are real ones."""

import pytest

from lib.base.errors import Refused
from lib.engines import ENGINES
from lib.model.fleet import FaultClass
from tests.unit.engines.orders import launch

LLAMA = ENGINES["llama-server"]


def after(argv: list[str], flag: str) -> str:
    """The word behind the last occurrence of a flag."""
    return argv[len(argv) - argv[::-1].index(flag)]


def test_the_model_the_name_and_the_loopback_address_are_always_given() -> None:
    argv = LLAMA.command(launch())
    assert argv[0] == "/opt/program"
    assert (after(argv, "-m"), after(argv, "-a")) == ("/srv/m.gguf", "m")
    assert (after(argv, "--host"), after(argv, "--port")) == ("127.0.0.1", "20001")
    assert {"--metrics", "--no-ui", "--offline"} <= set(argv)


def test_too_little_memory_is_an_error_and_not_a_smaller_context() -> None:
    argv = LLAMA.command(launch(gpus=("GPU-a",)))
    assert (after(argv, "--fit"), after(argv, "-ngl")) == ("off", "all")
    assert "--device" not in argv


def test_without_gpus_of_its_own_it_uses_none() -> None:
    assert after(LLAMA.command(launch()), "--device") == "none"


@pytest.mark.parametrize("words", [["-ngl", "20"], ["--n-gpu-layers", "20"], ["--n_gpu_layers", "20"]])
def test_a_profile_may_replace_a_default_in_any_spelling(words: list[str]) -> None:
    argv = LLAMA.command(launch(args=tuple(words)))
    assert "all" not in argv
    assert argv[argv.index(words[0]) + 1] == "20"


def test_what_llmgw_sets_comes_after_what_the_profile_says() -> None:
    argv = LLAMA.command(launch(args=("--ctx-size", "4096")))
    assert argv.index("--ctx-size") < argv.index("-m")


def test_it_is_never_started_without_a_model() -> None:
    with pytest.raises(Refused, match="without a model"):
        LLAMA.command(launch(source=""))


@pytest.mark.parametrize("args", [
    ["-m", "x"], ["--model", "x"], ["--host", "0.0.0.0"], ["--port", "1"], ["--port=1"], ["--api-key", "k"], ["--api_key", "k"],
    ["-a", "x"], ["-hf", "a/b"], ["--rpc", "h:1"], ["--tools", "all"], ["--help"], ["--ctx-size=5"], ["stray"],
    ["--ctx-size", "512", "--sleep-idle-seconds", "5"], ["--slot-save-path", "/"], ["--models-dir", "/srv"]])
def test_an_argument_that_would_break_a_guarantee_is_refused_with_a_reason(args: list[str]) -> None:
    problem = LLAMA.rules().bad_argument(args)
    assert problem
    assert ":" in problem or "no flag" in problem


@pytest.mark.parametrize("args", [[], ["--ctx-size", "4096"], ["-c", "512", "-np", "2", "-t", "1"], ["--temp", "-1"],
                                  ["--skip-chat-parsing"], ["--chat-template", "a=b"]])
def test_ordinary_arguments_are_allowed(args: list[str]) -> None:
    assert LLAMA.rules().bad_argument(args) == ""


@pytest.mark.parametrize("name", ["LLAMA_ARG_PORT", "LLAMA_API_KEY", "AIP_MODE"])
def test_a_variable_that_would_act_as_a_flag_is_refused(name: str) -> None:
    assert LLAMA.rules().bad_variable(name)


def test_it_is_ready_once_it_lists_its_name_and_completes() -> None:
    probe = LLAMA.readiness(launch())
    assert probe
    assert (probe.path, probe.served_name, probe.canary) == ("/health", "m", True)


@pytest.mark.parametrize("flag", ["--embedding", "--embeddings", "--rerank", "--reranking"])
def test_an_embedding_server_is_not_asked_to_complete(flag: str) -> None:
    probe = LLAMA.readiness(launch(args=(flag,)))
    assert probe
    assert not probe.canary


def test_the_version_is_what_the_program_says() -> None:
    said = "version: 0.1.0-dev (build 1, commit 7e4c0a9)\nbuilt with GNU 11.4.0 for Linux x86_64\n"
    assert LLAMA.parse_version(said) == "0.1.0-dev (build 1, commit 7e4c0a9)"
    assert LLAMA.parse_version("Segmentation fault") == ""


@pytest.mark.parametrize("line,fault", [
    ("E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 18555", FaultClass.RESOURCE),
    ("E gguf_init_from_file: failed to open GGUF file '/nope.gguf' (No such file or directory)", FaultClass.RESOURCE),
    ("E alloc_tensor_range: failed to allocate CPU buffer of size 2304000000000", FaultClass.RESOURCE),
    ("error: invalid argument: --bogus", FaultClass.CONFIGURATION),
    ('error while handling argument "-c": stoi', FaultClass.CONFIGURATION),
    ("E llama_model_load: error loading model: tensor 'token_embd.weight' data is not within the file bounds, "
     "model is corrupted or incomplete", FaultClass.CONFIGURATION)])
def test_an_exit_is_judged_by_the_line_that_tells_the_cause(line: str, fault: FaultClass) -> None:
    tail = [line, "E srv    load_model: failed to load model, 'x'", "E srv  llama_server: exiting due to model loading error"]
    found, sentence = LLAMA.classify(1, tail)
    assert found is fault
    assert line[-40:] in sentence


@pytest.mark.parametrize("code,words", [(0, "status 0"), (-9, "SIGKILL"), (134, "SIGABRT"), (None, "could not be started"),
                                        (3, "status 3")])
def test_an_exit_without_a_known_line_is_worth_another_try(code: int | None, words: str) -> None:
    fault, sentence = LLAMA.classify(code, ["all was well"])
    assert fault is FaultClass.TRANSIENT
    assert words in sentence
