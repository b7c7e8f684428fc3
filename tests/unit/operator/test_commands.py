"""The table of commands: each has help and a place in the docs."""

import re
from pathlib import Path

import pytest

import llmgw_ctl
from lib.cli.app import Command
from lib.engines import rules
from lib.model.catalog import parse_catalog
from lib.operator import demo_files
from lib.operator.demo_layout import Real
from lib.operator.install import starter_catalog

ROOT = Path(__file__).resolve().parents[3]
NAMES = [command.name for command in llmgw_ctl.COMMANDS]


@pytest.mark.parametrize("command", llmgw_ctl.COMMANDS, ids=lambda command: command.name)
def test_a_command_has_help_and_a_place_in_the_docs_with_every_flag(command: Command) -> None:
    page = (ROOT / "docs" / "ctl.md").read_text()
    assert command.help
    assert re.search(rf"^#+ .*`{command.name}[ `]", page, flags=re.MULTILINE), f"no heading for {command.name}"
    for each in command.args:
        assert each.options.get("help"), f"{command.name} {each.names} has no help"
        assert not each.names[-1].startswith("--") or f"`{each.names[-1]}" in page, f"{each.names[-1]} is not in docs/ctl.md"


def test_no_name_is_taken_twice_and_none_hides_a_family() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert not {name.split()[0] for name in NAMES if " " in name} & set(NAMES)


@pytest.mark.parametrize("command", llmgw_ctl.COMMANDS, ids=lambda command: command.name)
def test_help_of_every_command_can_be_printed(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert llmgw_ctl.main([*command.name.split(), "--help"]) == 0
    assert command.help[1:] in " ".join(capsys.readouterr().out.split())


def test_the_sample_catalog_and_the_one_of_a_new_installation_are_good() -> None:
    sample = parse_catalog((ROOT / "catalog.toml").read_text(), "catalog.toml", rules())
    assert {profile.shards for profile in sample.profiles.values()} == {1, 2}
    assert parse_catalog(starter_catalog(), "starter", rules()).profiles == {}


@pytest.mark.parametrize("path", ["catalog.toml", "lib/operator/starter_catalog.toml"])
def test_what_a_sample_comments_out_would_be_good_too(path: str) -> None:
    text = (ROOT / path).read_text()
    block = text[text.index("# [models.gemma"):].replace("\n#\n", "\n\n")
    assert parse_catalog(re.sub(r"^# ?", "", block, flags=re.MULTILINE), path, rules()).profiles


@pytest.mark.parametrize("real", [None, Real("/bin/true", Path('/srv/a "quoted" name.gguf')),
                                  Real("/bin/true", Path("/srv/m-q4.gguf"))])
def test_the_demos_catalog_is_good_with_and_without_a_real_engine(real: Real | None) -> None:
    catalog = parse_catalog(demo_files.catalog_text(real), "demo", rules())
    fabrics = {profile.fabric: profile for profile in catalog.profiles.values()}
    assert [(name, fabrics[name].shards, fabrics[name].gpus) for name in ("ib-a", "ib-b")] == [("ib-a", 2, 2), ("ib-b", 2, 2)]
    assert fabrics[""].node_labels == demo_files.ISLAND
    assert fabrics[""].engine == ("llama-server" if real else "sim")


def test_a_catalog_is_judged_without_a_control_plane(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text('[models.m]\nsuorce = "/x"\n[profiles.p]\nmodel = "n"\nengine = "simm"\n')
    assert llmgw_ctl.main(["catalog", "check", str(bad)]) == 78
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ", 2)[1] for line in lines] == [f"{bad}:2", f"{bad}:4", f"{bad}:5"]
    assert llmgw_ctl.main(["catalog", "check", str(tmp_path / "none.toml")]) == 78
