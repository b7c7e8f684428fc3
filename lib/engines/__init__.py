"""Room engines: one inference engine a file, the interface they share, and the table of all.

A new engine is a new file and one line in ENGINES.
"""

from collections.abc import Mapping

from lib.engines.interface import Engine, Launch
from lib.engines.llamacpp import LlamaServer
from lib.engines.sim import Sim
from lib.model.catalog import EngineRules

ENGINES: Mapping[str, Engine] = {engine.name: engine for engine in (Sim(), LlamaServer())}

__all__ = ["ENGINES", "Engine", "Launch", "rules"]


def rules() -> Mapping[str, EngineRules]:
    """What `parse_catalog` must know of every engine."""
    return {name: engine.rules() for name, engine in ENGINES.items()}
