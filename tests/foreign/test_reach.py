"""How far a model works: the right tokens are scored, shifted logits are seen, and rows say what they should."""

import json
from math import exp, log

import pytest
import torch
from torch import nn

from lengthwise.foreign import losses, reach
from lengthwise.foreign.distance import attended_distances
from lengthwise.foreign.losses import last_logits, most_tokens, perplexity, require_aligned_logits, token_losses
from lengthwise.foreign.reach import Reach, default_lengths, measure_reach
from lengthwise.foreign.recall import (
    copy_questions,
    induction_questions,
    questions_in,
    retrieval_questions,
    right_answers,
)
from lengthwise.foreign.rows import exponential, mean_row, share_row
from lengthwise.spec import SpecError
from tests.foreign.toys import Looks, Repeats, Uniform, shifted
from tests.foreign.zoo import VOCABULARY, ZOO, build

USABLE = list(range(3, VOCABULARY))
LENGTHS = [32, 64, 128]


def text(tokens: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (tokens,), generator=torch.Generator().manual_seed(seed))


# --- perplexity ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [1, 7, 12])
def test_perplexity_is_what_one_computes_by_hand(stride):
    """Each token is scored alone here, with the tokens that the rule gives it."""
    model, ids, window, found = build("llama"), text(50), 20, []
    with torch.no_grad():
        for target in range(1, 50):
            end = window
            while end <= target:
                end = min(end + stride, 50)
            logits = model(ids[None, end - window : target]).logits[0, -1]
            found.append(-float(logits.double().log_softmax(-1)[ids[target]]))
    assert len(found) == 49
    assert perplexity(model, ids, window, stride) == pytest.approx(exp(sum(found) / 49), rel=1e-5)


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary():
    for window, stride in ((20, 5), (50, 49), (64, 1)):
        assert perplexity(Uniform(), text(50), window, stride) == pytest.approx(VOCABULARY, rel=1e-12)


def test_a_stride_that_leaves_a_token_without_context_is_refused():
    with pytest.raises(SpecError, match=r"stride 20 with window 20 would score .* use a stride of 1 to 19, such as 10"):
        perplexity(Uniform(), text(50), 20, 20)
    with pytest.raises(SpecError, match="a text of 1 tokens has none to score"):
        perplexity(Uniform(), text(1), 20, 10)


@pytest.mark.parametrize("offset", [-1, 1, 2])
@pytest.mark.parametrize("kind", [Looks, Repeats])
def test_shifted_logits_are_seen(kind, offset):
    told = "shifted by one: those at token 11 change with token 12" if offset < 0 else f"shifted by {offset}: .* only"
    with pytest.raises(SpecError, match=told):
        perplexity(kind(offset=offset), text(50), 20, 10)


class Shifted(nn.Module):
    """A port that returns logits already moved to their labels."""

    def __init__(self, model, offset):
        super().__init__()
        self.model, self.offset = model, offset

    def forward(self, ids_BT, use_cache=False):
        return shifted(self.model(ids_BT).logits, self.offset)


@pytest.mark.parametrize("offset", [-1, 1])
def test_shifted_logits_of_random_weights_are_seen(offset):
    with pytest.raises(SpecError, match="the logits are shifted by"):
        measure_reach(Shifted(build("llama"), offset), text(200), [32])


def test_attention_that_is_not_causal_is_seen():
    class Sees(Uniform):
        def predict(self, ids_BT):
            return super().predict(ids_BT) + ids_BT.float().mean(1)[:, None, None] * torch.arange(VOCABULARY)

    with pytest.raises(SpecError, match="attention is not causal: the logits at token 0 change with token 12"):
        require_aligned_logits(Sees(), text(50))


@pytest.mark.parametrize("model", [Uniform(), Repeats(), Looks()])
def test_logits_that_are_right_raise_no_alarm(model):
    require_aligned_logits(model, text(50))
    require_aligned_logits(model, torch.full((50,), 5))


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_no_model_of_the_zoo_raises_an_alarm(name):
    require_aligned_logits(build(name), text(50))


def test_logits_of_fewer_tokens_are_refused():
    class Cut(Uniform):
        def predict(self, ids_BT):
            return super().predict(ids_BT)[:, 1:]

    with pytest.raises(SpecError, match=r"logits of shape \(1, 23, 97\) for 1 rows of 24 tokens"):
        require_aligned_logits(Cut(), text(50))


def test_losses_are_those_of_the_last_tokens_with_and_without_all_logits(monkeypatch):
    model, ids_BT = build("llama"), text(120).reshape(4, 30)
    whole = token_losses(model, ids_BT).detach()
    assert torch.allclose(token_losses(model, ids_BT, 5).detach(), whole[:, -5:], atol=1e-5)
    monkeypatch.setattr(losses, "AT_ONCE", 30)
    monkeypatch.setattr(losses, "ROWS_AT_ONCE", 7)
    assert torch.allclose(token_losses(model, ids_BT).detach(), whole, atol=1e-5)
    monkeypatch.setattr(losses, "accepts", lambda *_: False)  # a model that cannot compute the last logits alone
    assert torch.allclose(token_losses(model, ids_BT, 5).detach(), whole[:, -5:], atol=1e-5)
    with pytest.raises(SpecError, match="of 30 tokens at least 1 and at most 29 can be scored, not 30"):
        token_losses(model, ids_BT, 30)


# --- the same targets ------------------------------------------------------------------------------------------------


def scored(model: Uniform, lengths, targets: int) -> dict[int, torch.Tensor]:
    """Return the last tokens of the windows that the model saw, by length."""
    found: dict[int, list[torch.Tensor]] = {length: [] for length in lengths}
    for ids_BT in model.seen:
        if ids_BT.shape[1] in found:
            found[ids_BT.shape[1]].append(ids_BT[:, -targets:])
    return {length: torch.cat(parts) for length, parts in found.items()}


def test_the_same_target_tokens_are_scored_at_every_context():
    model, ids = Looks(), text(600)
    windows_WT = reach.text_windows(ids, 128, 4)
    rows = reach.perplexity_rows(model, windows_WT, LENGTHS, lambda _: None)
    seen = scored(model, LENGTHS, 16)
    for length in LENGTHS:
        assert seen[length].equal(windows_WT[:, -16:])
    assert [row["length"] for row in rows if row["measure"] == "perplexity"] == LENGTHS
    assert all(row["examples"] == 4 for row in rows)
    # Each length scores these 16 tokens and no others: losses of a model that is uniform but for them.
    by_hand = [token_losses(model, windows_WT[:, -length:])[:, -16:].mean() for length in LENGTHS]
    found = [row["value"] for row in rows if row["measure"] == "perplexity"]
    assert found == pytest.approx([exp(one) for one in by_hand])


def test_the_check_of_targets_sees_windows_that_begin_at_the_start():
    """Planted: the usual mistake, where a shorter context is the beginning of the window and has other targets."""
    model, windows_WT = Looks(), reach.text_windows(text(600), 128, 4)
    for length in LENGTHS:
        token_losses(model, windows_WT[:, :length], 16)
    assert not scored(model, LENGTHS, 16)[32].equal(windows_WT[:, -16:])


def test_windows_do_not_overlap_and_a_short_text_is_told():
    windows_WT = reach.text_windows(torch.arange(1000), 128, 4)
    assert windows_WT.unique().numel() == windows_WT.numel() == 512 and windows_WT.max() > 870
    assert reach.text_windows(torch.arange(300), 128, 4).shape == (2, 128)
    with pytest.raises(SpecError, match=r"the text has 100 tokens, which is no window of 128: .* better 512"):
        reach.text_windows(torch.arange(100), 128, 4)


# --- recall ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [32, 64, 129])
def test_questions_have_their_length_and_an_answer_in_the_context(length):
    asked = questions_in(32)
    made = {
        "copy": copy_questions(USABLE, length, 3),
        "induction": induction_questions(USABLE, length, 3, asked),
        "retrieval": retrieval_questions(USABLE, text(500), length, 3, asked),
    }
    past = {"copy": 1, "induction": 1, "retrieval": 4}
    for name, questions in made.items():
        assert questions.ids_ST.shape == (3, length - length % 2 if name == "copy" else length)
        for row, places in zip(questions.ids_ST.tolist(), questions.places_SN.tolist(), strict=True):
            for place in places:
                key, answer = row[place - past[name] : place], row[place]
                before = [n for n in range(past[name], place) if row[n - past[name] : n] == key]
                assert answer in [row[n] for n in before], f"{name}: the answer is nowhere"
            if name == "induction":
                assert len({row[place] for place in places}) == len(places) and len(before) == 1
    assert made["retrieval"].ids_ST.equal(retrieval_questions(USABLE, text(500), length, 3, asked).ids_ST)
    assert not made["retrieval"].ids_ST.equal(retrieval_questions(USABLE, text(500), length, 3, asked, seed=1).ids_ST)


def test_a_model_that_looks_far_back_answers_and_a_local_one_does_not():
    questions = retrieval_questions(USABLE, text(500), 128, 8, 2)
    assert right_answers(Looks(), questions).float().mean() == 1
    assert right_answers(Looks(window=16), questions).float().mean() < 0.1
    assert right_answers(Looks(), induction_questions(USABLE, 128, 8, 2)).float().mean() == 1
    assert right_answers(Looks(), copy_questions(USABLE, 128, 8)).float().mean() > 0.95
    assert right_answers(Uniform(), questions).float().mean() < 0.1


def test_answers_are_read_one_token_before_their_place():
    """Planted: the logits of the answer itself, one too late, would let a model that repeats be right."""
    questions = induction_questions(USABLE, 64, 4, 2)
    assert right_answers(Repeats(), questions).float().mean() == 0
    late = type(questions)(questions.ids_ST, questions.places_SN - 0)
    best = last_logits(Repeats(), late.ids_ST, 64).argmax(-1).gather(1, late.places_SN)
    assert best.equal(late.ids_ST.gather(1, late.places_SN))


def test_too_few_tokens_for_recall_are_told():
    with pytest.raises(SpecError, match="copy and retrieval need at least 16 different tokens; the text has 4"):
        measure_reach(Uniform(), torch.arange(400) % 4, [32])
    with pytest.raises(SpecError, match=r"lengths are at least 16 tokens, not \[8, 32\]"):
        measure_reach(Uniform(), text(400), [8, 32])


# --- intervals -------------------------------------------------------------------------------------------------------


def test_intervals_are_those_of_the_textbook():
    row = mean_row("loss", 8, [1.0, 2.0, 3.0])
    assert (row["value"], row["high"]) == (2.0, pytest.approx(2 + 4.302653 / 3**0.5, rel=1e-6))
    assert mean_row("loss", 8, [1.0])["low"] is None
    assert exponential(mean_row("loss", 8, [log(3.0)] * 2))["high"] == pytest.approx(3.0)
    alone = share_row("copy", 8, torch.tensor([[1.0]] * 8 + [[0.0]] * 2))
    assert (alone["low"], alone["high"]) == (pytest.approx(0.4439, abs=1e-4), pytest.approx(0.9748, abs=1e-4))
    assert share_row("copy", 8, torch.ones(2, 8))["low"] == pytest.approx(0.025 ** (1 / 16))
    together = share_row("copy", 8, torch.tensor([[1.0] * 8] * 3 + [[0.0] * 8]))
    assert together["low"] == pytest.approx(0.194, abs=1e-3), "as 4 questions, not 32: a sequence is right as a whole"


# --- all of it -------------------------------------------------------------------------------------------------------


def test_everything_is_measured_and_measured_again_the_same(monkeypatch):
    monkeypatch.setattr(reach, "RECALL_TOKENS", 256)
    model, ids, said = build("llama").train(), text(600), []
    found = measure_reach(model, ids, LENGTHS, trained_length=64, say=said.append)
    assert found.rows == measure_reach(model, ids, LENGTHS, trained_length=64).rows
    assert model.training and all(module.training for module in model.modules())
    for measure in ("perplexity", "perplexity ratio", "copy", "induction", "retrieval", "attended distance"):
        assert list(found.values(measure)) == LENGTHS
    assert list(found.values("moved passage by positions")) == [0, 16, 48, 112]
    assert max(found.values("loss by position")) == 127 and len(found.values("loss by position")) == 32
    for change in found.values("moved passage by positions, change").values():
        assert change == pytest.approx(0, abs=1e-4), "a relative encoding does not see a shift of all positions"
    assert found.values("perplexity ratio")[32] == 1
    assert json.loads(json.dumps(found.plain()))["rows"] == [dict(row) for row in found.rows]
    assert "offset" in str(found) and "retrieval in 128 tokens" in said


def test_absolute_positions_see_a_shift_and_end_with_their_table(monkeypatch):
    monkeypatch.setattr(reach, "RECALL_TOKENS", 256)
    found = measure_reach(build("gpt2"), text(600), LENGTHS)
    assert list(found.values("perplexity")) == [32, 64] and "The model has no positions beyond 64." in found.notes
    assert abs(found.values("moved passage by positions, change")[48]) > 0.01
    assert most_tokens(build("gpt2"), text(600)) == 64
    with pytest.raises(SpecError, match="no positions beyond 64, and the shortest length is 128"):
        measure_reach(build("gpt2"), text(600), [128])


def test_an_error_that_is_not_about_positions_is_not_taken_for_one():
    class Breaks(Uniform):
        def predict(self, ids_BT):
            if ids_BT.shape[1] > 60:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
            return super().predict(ids_BT)

    with pytest.raises(RuntimeError, match="allocate memory"):
        measure_reach(Breaks(), text(600), LENGTHS)


def test_a_model_without_position_ids_is_told():
    found = measure_reach(Looks(), text(600), [32, 64])
    assert not found.values("moved passage by positions") and found.values("moved passage behind text")
    assert any("takes no position_ids" in note for note in found.notes)
    assert any("no attended distance" in note for note in found.notes)


def rows(measure: str, values: dict[int, float]) -> list[dict]:
    return [
        {"measure": measure, "length": n, "value": v, "low": v, "high": v, "examples": 9} for n, v in values.items()
    ]


def verdict(perplexities: dict[int, float], retrieval: dict[int, float]) -> str:
    first = next(iter(perplexities.values()))
    ratio = {length: value / first for length, value in perplexities.items()}
    made = rows("perplexity", perplexities) + rows("perplexity ratio", ratio) + rows("retrieval", retrieval)
    return Reach(tuple(made)).verdict


def test_the_verdict_says_where_perplexity_and_retrieval_disagree():
    fine = {64: 20.0, 128: 18.0, 256: 18.5}
    assert verdict(fine, {64: 1.0, 128: 0.9, 256: 0.7}) == (
        "Works to 256 tokens. Perplexity holds to 256 tokens, the longest measured. Retrieval holds to 256."
    )
    local = verdict(fine, {64: 1.0, 128: 0.2, 256: 0.1})
    assert local.startswith("Works to 64 tokens: retrieval falls from 100% to 20% with 128.")
    assert "A fine perplexity beyond 64 is that of a model that looks only nearby." in local
    broken = verdict({64: 20.0, 128: 18.0, 256: 90.0}, {64: 1.0, 128: 1.0, 256: 0.0})
    assert broken.startswith("Works to 128 tokens. Perplexity holds to 128 tokens: with 256 it is 90, and 18")
    assert "does not retrieve even with 64 tokens (10%)" in verdict(fine, {64: 0.1, 128: 0.1, 256: 0.1})
    assert verdict({64: float("nan")}, {}) == "The model's loss is not finite even with 64 tokens."
    unsettled = Reach(tuple(rows("perplexity", {64: 20.0, 128: 22.0}) + rows("perplexity ratio", {64: 1.0, 128: 0.9})))
    assert "which so few targets do not settle" in unsettled.verdict


def test_default_lengths_double_and_end_at_the_longest():
    assert default_lengths(4096) == [64, 128, 256, 512, 1024, 2048, 4096]
    assert default_lengths(100) == [100] and default_lengths(300) == [75, 150, 300]


def test_attended_distance_of_a_window_is_within_it():
    ids = text(64)
    far, near = attended_distances(build("llama"), ids), attended_distances(build("mistral"), ids)
    assert len(far) == 4 and far[0].shape == (4,)
    assert all(float(one.max()) < 8 for one in near) and all(float(one.mean()) > 8 for one in far)
    model = build("llama")
    with torch.no_grad():
        weights_LHQK = torch.cat(model(ids[None], output_attentions=True).attentions)
    back_QK = torch.arange(64)[:, None] - torch.arange(64)
    by_hand = (weights_LHQK * back_QK).sum(-1)[..., -16:].mean(-1)
    assert torch.allclose(torch.stack(attended_distances(model, ids)), by_hand, atol=1e-4)


@pytest.mark.slow
def test_the_figure_has_every_panel(tmp_path):
    from lengthwise.reporting.foreign_models import reach_drawing

    found = measure_reach(Looks(window=40), text(600), LENGTHS, trained_length=64)
    drawing = reach_drawing(found.rows, found.trained_length)
    assert [path.suffix for path in drawing.write(tmp_path)] == [".svg", ".csv"]
    for words in ("perplexity, same targets", "retrieval", "behind other tokens", "position in the longest context"):
        assert words in drawing.svg()
    assert "retrieval is 1 with 32 tokens and 0" in drawing.alt and drawing.alt.endswith("the trained length, 64.")
