"""Why a shard ended, in a sentence, and what that says about trying again.

Room: shim. What an exit means is the engine's to say; what the machine knows besides (a signal, the kernel out of memory) is
added here.
"""

import errno
import re
import signal
from collections.abc import Sequence
from pathlib import Path

from lib.base.errors import ConfigError, LlmgwError, Refused, UsageError
from lib.engines import ENGINES
from lib.model.cause import Cause, exit_words
from lib.model.fleet import FaultClass

_STAMP = re.compile(r"^\d{4}-\d\d-\d\d[ T][\d:.,]+Z?\s+")            # when it was said stands beside the reason already
_CONFIGURATION = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.E2BIG)


def judge_exit(engine: str, code: int, tail: Sequence[str], *, out_of_memory: bool) -> Cause:
    """About an engine that ended although nobody asked for it. Status 0 is a failure like any other."""
    if out_of_memory and code == -signal.SIGKILL:
        return Cause(FaultClass.RESOURCE, f"the engine {exit_words(code)}: the kernel was out of memory")
    if engine in ENGINES:
        fault, sentence = ENGINES[engine].classify(code, tail)
    else:
        fault, sentence = FaultClass.TRANSIENT, f"the engine {exit_words(code)}"
    last = _STAMP.sub("", tail[-1].strip())[-300:] if tail else ""
    return Cause(fault, sentence if last in sentence else f"{sentence}; its last line: {last}")


def judge_start(err: Exception, program: str) -> Cause:
    """About a shard that did not come to running."""
    if isinstance(err, ConfigError | UsageError | Refused):
        return Cause(FaultClass.CONFIGURATION, str(err))
    if isinstance(err, LlmgwError):
        return Cause(FaultClass.RESOURCE, str(err))
    code = err.errno if isinstance(err, OSError) else 0
    fault = FaultClass.CONFIGURATION if code in _CONFIGURATION else FaultClass.RESOURCE
    return Cause(fault, f"cannot start {program}: {err.strerror if isinstance(err, OSError) else err}")


def oom_kills() -> int:
    """How often the kernel of this machine has killed for want of memory since boot; 0 where it does not say."""
    try:
        text = Path("/proc/vmstat").read_text(encoding="ascii")
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)
