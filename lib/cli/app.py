"""From a table of commands to an exit code: help, version, flags, and the one place where a failure is printed.

Room: cli. Knows no command. Results go to stdout, talk to stderr; abbreviations are off; exit codes are those of the errors.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from lib.base.config import did_you_mean
from lib.base.errors import Cancelled, LlmgwError, UsageError
from lib.base.version import VERSION

INTERRUPTED = 130
Given = argparse.Namespace


@dataclass(frozen=True, slots=True)
class Arg:
    """A flag or a word of a command: what `argparse` wants to know of it. Made by `arg`."""

    names: tuple[str, ...]
    options: Mapping[str, Any]

    @property
    def takes_value(self) -> bool:
        return self.options.get("action", "store") in ("store", "append")


def arg(*names: str, **options: Any) -> Arg:
    """`arg("--all", action="store_true", help=…)`: as for `add_argument`."""
    return Arg(names, options)


@dataclass(frozen=True, slots=True)
class Command:
    """One row: `name` (one or two words), what runs, a line of help, its flags and words.

    A `raw` command gets everything after its name untouched, as `given.words`. One without help is for our own programs and
    stays out of the listing.
    """

    name: str
    run: Callable[[Given], int | None]
    help: str
    args: tuple[Arg, ...] = ()
    raw: bool = False


_HELP, _VERSION = arg("-h", "--help"), arg("-V", "--version")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"{self.prog} --help")


def run(program: str, commands: Sequence[Command], argv: Sequence[str] | None = None, *, about: str = "",
        options: Sequence[Arg] = ()) -> int:
    """The exit code of `program` called with `argv`. `options` are taken before and after any command."""
    words = list(sys.argv[1:] if argv is None else argv)
    return _ending(program, lambda: _dispatch(_Program(program, about, commands, tuple(options)), words))


def run_single(program: str, command: Command, argv: Sequence[str] | None = None) -> int:
    """The exit code of a `program` that is one command: its flags follow at once, the command's name is not said."""
    words = list(sys.argv[1:] if argv is None else argv)
    return _ending(program, lambda: _only(program, command, words))


def _ending(program: str, work: Callable[[], int]) -> int:
    """What `work()` comes to, as an exit code; the one place where a failure is printed."""
    try:
        code = work()
        sys.stdout.flush()
        return code
    except LlmgwError as err:
        return _report(program, err)
    except BrokenPipeError:                 # whoever read us has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED


def count(text: str) -> int:
    """The `type` of a flag that takes a whole number from 0 on."""
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed; Cancelled unless the answer is yes. Without a terminal there is nobody to ask, and
    the call itself is the answer."""
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    say(f"{question} [y/N] ", end="")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Cancelled("nothing was done")


def say(text: str, *, end: str = "\n") -> None:
    """Talk: a line on stderr."""
    sys.stderr.write(text + end)
    sys.stderr.flush()


def _report(program: str, err: LlmgwError) -> int:
    for line in str(err).splitlines():
        say(f"{program}: {line}")
    if err.hint:
        say(f"  hint: {err.hint}")
    return err.exit_code


@dataclass(frozen=True, slots=True)
class _Program:
    name: str
    about: str
    commands: Sequence[Command]
    options: tuple[Arg, ...]

    @property
    def visible(self) -> list[Command]:
        rows = [row for row in self.commands if row.help]
        return [*rows, Command("version", self.print_version, "print the version of this build")]

    def print_version(self, _: Given) -> None:
        sys.stdout.write(f"{self.name} {VERSION}\n")


def _dispatch(program: _Program, words: list[str]) -> int:
    count = _leading(program.options, words)
    before, rest = words[:count], words[count:]
    if rest[:1] == ["help"]:
        rest = [*rest[1:], "--help"]
    if not words or rest[:1] in (["-h"], ["--help"]):
        sys.stdout.write(_overview(program, program.visible))
        return 0
    if rest in (["-V"], ["--version"]):
        program.print_version(Given())
        return 0
    if rest and rest[0].startswith("-"):
        if any(rest[0].partition("=")[0] in each.names for row in program.commands for each in row.args):
            raise UsageError(f"{rest[0]} comes before the command", hint=f"write it after: {program.name} COMMAND {rest[0]}")
        raise _not_known(program.name, rest, [*program.options, _HELP, _VERSION])
    shared = _shared(program, before)
    if not rest:
        raise UsageError("no command", hint=f"{program.name} --help lists them")
    command = _find(program, rest)
    if command is None:
        sys.stdout.write(_overview(program, _below(program, rest[0]), rest[0]))
        return 0
    return _run(program, command, shared, rest[len(command.name.split()):])


def _shared(program: _Program, words: Sequence[str]) -> Given:
    """The flags before the command."""
    parser = _Parser(program.name, add_help=False, allow_abbrev=False)
    _add(parser, program.options)
    return parser.parse_args(words)


def _leading(options: Iterable[Arg], words: Sequence[str]) -> int:
    """How many words at the front are global flags with their values."""
    wants_value = {name: option.takes_value for option in options for name in option.names}
    count = 0
    while count < len(words) and (flag := words[count].partition("=")[0]) in wants_value:
        count += 2 if wants_value[flag] and "=" not in words[count] else 1
    return min(count, len(words))


def _find(program: _Program, words: Sequence[str]) -> Command | None:
    """The command these words begin with; None where help was asked for a family such as `keys`."""
    rows = {row.name: row for row in [*program.visible, *program.commands]}
    if row := rows.get(" ".join(words[:2])) or rows.get(words[0]):
        return row
    if family := _below(program, words[0]):
        names = [row.name.split()[1] for row in family]
        second = words[1] if len(words) > 1 else ""
        if second in ("-h", "--help"):
            return None
        raise UsageError(f"{words[0]}: {f'there is no {second!r}' if second else 'what of it?'}",
                         hint=did_you_mean(second, names) or f"{program.name} {words[0]} {'|'.join(names)}")
    raise UsageError(f"there is no command {words[0]!r}",
                     hint=did_you_mean(words[0], [row.name for row in program.visible]) or f"{program.name} --help lists them")


def _below(program: _Program, word: str) -> list[Command]:
    return [row for row in program.visible if row.name.startswith(f"{word} ")]


def _run(program: _Program, command: Command, given: Given, words: list[str]) -> int:
    if command.raw:
        given.words = words
        return command.run(given) or 0
    parser = _Parser(f"{program.name} {command.name}", description=_sentence(command.help), allow_abbrev=False)
    _add(parser, command.args)
    if program.options:
        _add(parser.add_argument_group("options of all commands"), program.options, default=argparse.SUPPRESS)
    return _parse_and_run(parser, command, given, words, [*command.args, *program.options])


def _only(program: str, command: Command, words: list[str]) -> int:
    if words in (["version"], ["--version"], ["-V"]):
        sys.stdout.write(f"{program} {VERSION}\n")
        return 0
    parser = _Parser(program, description=_sentence(command.help), allow_abbrev=False)
    _add(parser, (*command.args, arg("-V", "--version", action="store_true", help="print the version of this build")))
    return _parse_and_run(parser, command, Given(), words if words and words != ["help"] else ["--help"], command.args)


def _parse_and_run(parser: _Parser, command: Command, given: Given, words: list[str], known: Sequence[Arg]) -> int:
    try:
        _, unknown = parser.parse_known_args(words, given)
    except SystemExit:                      # --help was printed
        return 0
    if unknown:
        raise _not_known(parser.prog, unknown, [*known, _HELP])
    return command.run(given) or 0


def _add(parser: Any, args: Iterable[Arg], **overrides: Any) -> None:
    for each in args:
        parser.add_argument(*each.names, **{**each.options, **overrides})


def _not_known(prog: str, unknown: Sequence[str], args: Iterable[Arg]) -> UsageError:
    word = unknown[0].partition("=")[0]
    if not word.startswith("-"):
        return UsageError(f"{word!r} is one word too many", hint=f"{prog} --help")
    names = [name for each in args for name in each.names if name.startswith("-")]
    return UsageError(f"unknown flag {word}", hint=did_you_mean(word, names) or f"{prog} --help lists them")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _overview(program: _Program, rows: Sequence[Command], family: str = "") -> str:
    shared = [(f"{each.names[0]} {each.options.get('metavar', '')}".rstrip(), str(each.options.get("help", "")))
              for each in program.options]
    name = f"{program.name} {family}".rstrip()
    lines = [f"usage: {name}{''.join(f' [{flag}]' for flag, _ in shared)} COMMAND ...", ""]
    lines += [program.about, ""] if program.about and not family else []
    lines += _aligned([(row.name, row.help) for row in rows])
    if shared:
        lines += ["", "options of all commands, before or after the command:", *_aligned(shared)]
    lines += ["", f"{name} COMMAND --help tells more of one command."]
    return "\n".join(lines) + "\n"


def _aligned(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max((len(name) for name, _ in rows), default=0)
    return [f"  {name:<{width}}  {text}" for name, text in rows]
