"""What the wheel ships: studies, and the rows of small ones, so that documented commands work without a checkout."""

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lengthwise.study import add
from lengthwise.study.file import StudyFile

ROOT = Path(__file__).parents[1]


def hook():
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_results_are_shipped_by_their_size(tmp_path):
    for name, size in (("small", 999_000), ("large", 1_001_000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.parquet").write_bytes(b"0" * size)
    (tmp_path / "README.md").write_text("no folder")
    assert [folder.name for folder in hook().shipped(tmp_path)] == ["small"]
    assert {"quickstart", "glance", "theory"} <= {folder.name for folder in hook().shipped(ROOT / "results")}


def test_installed_results_are_found_where_the_package_lies(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    installed = tmp_path / "site-packages" / "lengthwise" / "study"
    (installed / "results" / "quickstart").mkdir(parents=True)
    (installed / "results" / "quickstart" / "bundle.json").write_text("{}")
    monkeypatch.setattr(add, "__file__", str(installed / "add.py"))
    assert add.committed_results_folder(StudyFile.read("quickstart")) == installed / "results" / "quickstart"
    assert add.find_committed_file("glance/bundle.json") is None


@pytest.mark.slow
def test_the_wheel_has_them(tmp_path):
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("quickstart/rows.parquet", "glance/bundle.json", "theory/claims.json"):
        assert f"lengthwise/study/results/{name}" in names
    assert "lengthwise/study/recipes/quickstart.yaml" in names
    assert not any("results/attention" in name for name in names), "it is larger than a megabyte"
