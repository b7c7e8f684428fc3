"""The stand-ins that docs/testing-without-hardware.md shows work as pasted."""

import re
import subprocess
from pathlib import Path

from lib.host.gpu import BASE, OPTIONAL, GpuReader, query
from lib.host.infiniband import conditions, read_adapters

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "testing-without-hardware.md").read_text(encoding="utf-8")
SCRIPTS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_names_exactly_the_questions_that_are_asked() -> None:
    for fields in (BASE, ("uuid", *OPTIONAL)):
        assert "nvidia-smi " + " ".join(query(fields)) in PAGE


def test_the_two_line_nvidia_smi_is_one_good_gpu(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text(SCRIPTS[0])
    (tmp_path / "nvidia-smi").chmod(0o755)
    reading = GpuReader(str(tmp_path / "nvidia-smi")).read()
    assert (reading.problem, [gpu.fault for gpu in reading.gpus]) == ("", [""])


def test_the_shell_loop_makes_two_good_adapters(tmp_path: Path) -> None:
    subprocess.run(["sh", "-c", SCRIPTS[1]], cwd=tmp_path, check=True, timeout=10)
    adapters = read_adapters(tmp_path / "ib")
    assert [(adapter.name, adapter.netdev) for adapter in adapters] == [("mlx5_0", "ib-mlx5_0"), ("mlx5_1", "ib-mlx5_1")]
    assert conditions(tmp_path / "ib", adapters) == ()
