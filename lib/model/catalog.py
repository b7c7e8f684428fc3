"""catalog.toml as types: the models clients ask for and the profiles that run them.

Room: model. A catalog is refused as a whole, with every fault listed; what an engine will not take is told by the rules
passed in, so that this room needs to know no engine.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lib.base.config import Table, did_you_mean, parse_toml
from lib.base.names import SHORT_LABEL
from lib.model.codec import encode

NAME = r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}"


@dataclass(frozen=True, slots=True)
class EngineRules:
    """What the catalog must know of an engine. The functions say what is wrong, in a sentence, or an empty string."""

    needs_source: bool
    multi_shard: bool
    bad_argument: Callable[[Sequence[str]], str]
    bad_variable: Callable[[str], str] = lambda _name: ""    # of the profile's env, by name


@dataclass(frozen=True, slots=True)
class Model:
    """A name clients ask for, and where its weights lie on every node that runs it."""

    name: str
    source: str = ""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """One way to run a model. Times in seconds."""

    name: str
    model: str
    engine: str
    shards: int = 1                        # how many nodes one replica spans
    gpus: int = 0                          # per shard, taken exclusively
    replicas: int = 1
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    fabric: str = ""                       # only this fabric; empty: any one
    max_inflight: int = 0                  # requests at once per replica; 0: no limit
    start_timeout: float = 1800.0
    drain_timeout: float = 120.0
    stop_timeout: float = 30.0
    node_labels: Mapping[str, str] = field(default_factory=dict)
    spread: bool = True                    # prefer nodes without another replica of this profile


@dataclass(frozen=True, slots=True)
class Spec:
    """What a replica is made from. Kept with the replica, so that a changed catalog changes nothing that runs."""

    profile: Profile
    model: Model


@dataclass(frozen=True, slots=True)
class Catalog:
    """All models and profiles, checked against each other."""

    models: Mapping[str, Model] = field(default_factory=dict)
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    _digests: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)     # `generation`, once made

    def spec(self, profile: str) -> Spec:
        """What a replica of `profile` would be made from now."""
        return Spec(self.profiles[profile], self.models[self.profiles[profile].model])

    def generation(self, profile: str) -> str:
        """Digest of what a replica of `profile` is made from: a change of it means another replica, other changes do not."""
        if profile not in self._digests:
            spec = encode(self.profiles[profile])
            for later in ("replicas", "max_inflight", "drain_timeout", "stop_timeout", "start_timeout", "spread"):
                del spec[later]
            spec["source"] = self.models[self.profiles[profile].model].source
            self._digests[profile] = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
        return self._digests[profile]


def parse_catalog(text: str, file: str, engines: Mapping[str, EngineRules]) -> Catalog:
    """The catalog in TOML `text`; ConfigError listing every fault. `file` is only named."""
    root = parse_toml(text, file)
    model_tables, profile_tables = root.tables("models"), root.tables("profiles")
    models = {name: _model(name, table) for name, table in model_tables.items()}
    profiles = {name: _profile(name, table) for name, table in profile_tables.items()}
    _check_names(model_tables, models)
    for name, profile in profiles.items():
        _check_profile(profile_tables[name], profile, models, engines)
    root.settle()
    return Catalog(models, profiles)


def _model(name: str, table: Table) -> Model:
    return Model(name, table.text("source", ""), table.texts("aliases", ()))


def _profile(name: str, table: Table) -> Profile:
    return Profile(
        name=name, model=table.text("model"), engine=table.text("engine"),
        shards=table.integer("shards", 1, low=1, high=64), gpus=table.integer("gpus", 0, high=64),
        replicas=table.integer("replicas", 1, high=1000), args=table.texts("args", ()), env=table.text_map("env"),
        fabric=table.text("fabric", ""), max_inflight=table.integer("max_inflight", 0),
        start_timeout=table.number("start_timeout", 1800.0, low=1), drain_timeout=table.number("drain_timeout", 120.0),
        stop_timeout=table.number("stop_timeout", 30.0), node_labels=table.text_map("node_labels"),
        spread=table.flag("spread", True))


def _check_names(tables: Mapping[str, Table], models: Mapping[str, Model]) -> None:
    taken = dict.fromkeys(models, "a model")
    for name, model in models.items():
        table = tables[name]
        for word in (name, *model.aliases):
            if not _fits(NAME, word):
                table.fault("aliases" if word != name else "", f"{word!r} cannot be a model name",
                            "letters, digits and . _ : / -, at most 128, a letter or digit first")
        for alias in model.aliases:
            if alias in taken:
                table.fault("aliases", f"{alias!r} is already {taken[alias]}")
            taken.setdefault(alias, f"an alias of {name}")


def _check_profile(table: Table, profile: Profile, models: Mapping[str, Model], engines: Mapping[str, EngineRules]) -> None:
    if not _fits(SHORT_LABEL, profile.name):
        table.fault("", f"{profile.name!r} cannot be a profile name", "lower-case letters, digits and '-', at most 41")
    if profile.model and profile.model not in models:
        table.fault("model", f"there is no model {profile.model!r}", did_you_mean(profile.model, models))
    if any("=" in key or not key for key in profile.env):
        table.fault("env", "a variable name is empty or holds '='")
    if profile.fabric and profile.shards == 1 and not _fits(SHORT_LABEL, profile.fabric):
        table.fault("fabric", f"{profile.fabric!r} cannot be a fabric name")
    rules = engines.get(profile.engine)
    if rules is None:
        if profile.engine:
            table.fault("engine", f"there is no engine {profile.engine!r}",
                        did_you_mean(profile.engine, engines) or f"known: {', '.join(sorted(engines))}")
        return
    _check_against_engine(table, profile, models.get(profile.model), rules)


def _check_against_engine(table: Table, profile: Profile, model: Model | None, rules: EngineRules) -> None:
    if any("\0" in word for word in (*profile.args, *profile.env, *profile.env.values())):
        table.fault("args", "a NUL character can be in no argument and no variable")
    if problem := rules.bad_argument(profile.args):
        table.fault("args", problem)
    for name in profile.env:
        if problem := rules.bad_variable(name):
            table.fault("env", problem)
    if profile.shards > 1 and not rules.multi_shard:
        table.fault("shards", f"{profile.engine} runs in one shard only")
    if model and rules.needs_source and not model.source.startswith("/"):
        table.fault("model", f"{profile.engine} needs the weights of {model.name}: set source to an absolute path "
                             f"under [models.{model.name}]")


def _fits(pattern: str, word: str) -> bool:
    return re.fullmatch(pattern, word) is not None
