"""`evaluate` labels lengths by what the run was trained on: its own task, or another that was asked for by name."""

import pytest
import torch

from lengthwise import evaluate, train
from lengthwise.spec import SpecError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Trained on parity up to 10, which is the laptop's setting and not the task's default of 20."""
    store = str(tmp_path_factory.mktemp("interface"))
    model = "laptop:width=16:heads=2:head_width=8"
    return train("parity", "nope", model=model, training="laptop:steps=3:batch_size=4", store=store, quiet=True)


def seen(rows):
    return dict(rows.select("length", "seen").iter_rows())


@pytest.mark.slow
def test_a_run_is_evaluated_on_its_own_task(run):
    assert run.task.longest == 10
    own = evaluate(run, lengths=[10, 11, 12], examples=4)
    assert seen(own) == {10: True, 11: False, 12: False}
    assert set(own["evaluation"]) == {"as trained"} and set(own["run"]) == {run.id}
    named = evaluate(run, "parity", [10, 11, 12], examples=4)
    assert named.equals(own), "what the name leaves open is as in the run"
    assert seen(run.evaluate([10, 11], examples=4).rows) == {10: True, 11: False}


def test_another_task_must_be_asked_for_and_its_rows_say_so(run):
    with pytest.raises(SpecError, match=r"up to 10, not 20.*another_task=True"):
        evaluate(run, "parity:longest=20", [11])
    rows = evaluate(run, "parity:longest=20", [10, 11], examples=4, another_task=True)
    assert seen(rows) == {10: True, 11: False}, "seen is what the run was trained on, whatever the task says"
    assert set(rows["evaluation"]) == {"task=parity:longest=20"}
    with pytest.raises(SpecError, match="not on sort"):
        evaluate(run, "sort", [3])


def test_a_model_that_is_no_run_needs_a_task():
    with pytest.raises(SpecError, match="has no task of its own"):
        evaluate(lambda ids, lengths: torch.zeros(*ids.shape, 100), lengths=[3])


def test_unknown_keywords_are_answered(run):
    with pytest.raises(TypeError, match=r"evaluate\(\) has no keyword 'exampels'. Did you mean 'examples'\?"):
        evaluate(run, lengths=[3], exampels=4)


def test_a_network_whose_table_ends_fails_in_one_line():
    table = torch.nn.Embedding(8, 200)

    def network(ids, lengths):
        return table(torch.arange(ids.shape[1])).expand(len(ids), -1, -1)

    with pytest.raises(SpecError, match=r"the model failed on sequences of \d+ tokens: IndexError.*shorter lengths"):
        evaluate(network, "copy:alphabet=60:longest=4", [6], examples=2)
