"""What the wheel ships: studies, and the rows of small ones, so that documented commands work without a checkout."""

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lengthwise.checksums import Damaged
from lengthwise.study import add
from lengthwise.study.bundle import Bundle
from lengthwise.study.file import StudyFile

ROOT = Path(__file__).parents[1]


def hook():
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_results_are_shipped_by_their_size(tmp_path):
    for name, rows, wrong in (("small", 250_000, 249_000), ("middle", 499_000, 9_000_000), ("large", 2_600_000, 0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.parquet").write_bytes(b"0" * rows)
        (tmp_path / name / "wrong.parquet").write_bytes(b"0" * wrong)
        (tmp_path / name / "runs.jsonl").write_bytes(b"0" * 9_000_000)  # text, which is compressed
    (tmp_path / "README.md").write_text("no folder")
    (tmp_path / "of an sdist").mkdir()
    (tmp_path / "of an sdist" / "bundle.json").write_text("{}")
    assert {folder.name: whole for folder, whole in hook().shipped(tmp_path).items()} == {
        "small": True,
        "middle": False,
        "of an sdist": False,
    }
    there = {folder.name: whole for folder, whole in hook().shipped(ROOT / "results").items()}
    assert there["quickstart"] and there["glance"] and there["theory"] and there["frequencies"] is False


def test_a_bundle_without_wrong_answers_says_so(finished, tmp_path):
    shutil.copytree(finished / "bundle", tmp_path / "bundle")
    (tmp_path / "bundle" / "wrong.parquet").unlink()
    with pytest.raises(Damaged, match=r"there is no .*wrong\.parquet"):
        Bundle(tmp_path / "bundle").wrong_answers_and_outcomes()
    (tmp_path / "bundle" / "left-out.txt").write_text("wrong.parquet\n")
    wrong, kinds = Bundle(tmp_path / "bundle").wrong_answers_and_outcomes()
    assert not wrong.height and kinds.height


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
    for name in ("quickstart/rows.parquet", "glance/wrong.parquet", "theory/claims.json", "frequencies/left-out.txt"):
        assert f"lengthwise/study/results/{name}" in names
    assert "lengthwise/study/recipes/quickstart.yaml" in names
    assert not any("frequencies/wrong" in name or "results/attention" in name for name in names)
