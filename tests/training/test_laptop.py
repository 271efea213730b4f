"""What `laptop` means for a task: a bare name gets a form that is learned, or says before training that it is not."""

import pytest

from lengthwise.run import Plan
from lengthwise.task import FROM_DATA, TASKS, build_task
from lengthwise.training.laptop import LAPTOP, laptop_overrides
from tests.run.test_cli_runs import cli

UNLEARNED = [name for name, setting in LAPTOP.items() if setting.unlearned]


@pytest.mark.parametrize("name", [name for name in TASKS if name not in FROM_DATA])
def test_every_task_has_a_setting_at_its_default(name):
    setting = laptop_overrides(build_task(name))
    assert setting.longest and setting.model and setting.training
    plan = Plan.of(name, check=False)
    assert plan.task.longest == setting.longest and plan.training.steps == setting.training["steps"]
    for option, value in setting.task.items():
        assert getattr(plan.task, option) == value
    assert Plan.of(str(plan.task_spec), check=False).id == plan.id, "written out in full it is the same run"


def test_a_format_is_for_the_bare_name_alone():
    assert str(Plan.of("addition", check=False).task_spec) == "addition:longest=4:padded=true:reversed=all"
    for spec in ("addition:longest=5", "addition:padded=true", "addition:scratchpad=full"):
        assert Plan.of(spec, check=False).task.reversed == "none", "who says more has a format in mind"
    assert str(Plan.of("addition", model="paper", training="paper", check=False).task_spec) == "addition"


def test_at_most_five_tasks_are_not_learned_and_each_says_so_before_training(tmp_path):
    assert len(UNLEARNED) <= 5
    for name in UNLEARNED:
        caution = Plan.of(name, check=False).caution
        assert caution.startswith(f"{name} is not learned at this size, even at seen lengths; ")
        assert not Plan.of(name, training="laptop:steps=9", check=False).caution, "another training is another matter"
    assert not Plan.of("copy", check=False).caution
    told = cli("train", "modular", "--stream", "nonsense=1", cwd=tmp_path)
    assert told.returncode == 2
    with pytest.warns(UserWarning, match="modular is not learned at this size.*modular:modulus=2 is learned"):
        _first_warning("modular", tmp_path)


def _first_warning(name, tmp_path):
    """The warning comes before anything is trained: the run is stopped by a start that does not exist."""
    from lengthwise import train
    from lengthwise.spec import SpecError

    with pytest.raises(SpecError, match="at least one thread"):
        train(name, threads=0, store=str(tmp_path))
