"""One pass says what decoding says; where it does not, it is found out; failures are told apart."""

import pytest
import torch

from lengthwise.encoding import ENCODINGS, build_positions
from lengthwise.evaluation import evaluate, evaluate_decoder
from lengthwise.evaluation.cases import evaluation_cases, splits_and_lengths
from lengthwise.evaluation.onepass import predict_in_one_pass
from lengthwise.evaluation.result import NEAR, first_disagreement
from lengthwise.model import Decoder, preset
from lengthwise.spec import SpecError
from lengthwise.task import build_task
from lengthwise.task.block import training_block
from lengthwise.training.batches import on_demand_blocks
from lengthwise.training.loop import Loop
from lengthwise.training.settings import Seeds, training_preset

SMALL = "laptop:width=32:heads=2:feed_forward_width=64"
COLUMNS = ["examples", "correct", "correct_content", "early", "late", "wrong", "cut"]


def trained(task, encoding="nope", steps=150, positions="consecutive", model=SMALL, rate=3e-3):
    """A model that knows some answers and not others."""
    built = build_task(task)
    training = training_preset("laptop", steps=steps, batch_size=32, lr=rate, warmup=10)
    decoder = Decoder(preset(model, vocabulary=len(built.vocabulary)), encoding)
    supply = on_demand_blocks(lambda start, stop: training_block(built, start, stop, 0))
    list(Loop(decoder, supply, training, build_positions(positions).of(built), Seeds.of(0)))
    return decoder.eval(), built


def outcomes(found):
    return [(one.kind, one.said, one.content) for one in found.judged]


def answering(task, answer):
    """A model from outside that says `answer(case's prompt ids, right answer)`, whatever it has said so far."""
    known = {
        tuple(case.ids[: case.prompt]): answer(case)
        for split, length in splits_and_lengths(task)
        for case in evaluation_cases(task, split, length)
    }
    size, end = len(task.vocabulary), task.vocabulary.eos

    def model(ids_BT, lengths_B):
        logits_BTV = torch.zeros(*ids_BT.shape, size)
        for row, (ids, count) in enumerate(zip(ids_BT.tolist(), lengths_B.tolist(), strict=True)):
            prompt = next(n for n in range(1, count + 1) if tuple(ids[:n]) in known)
            said = known[tuple(ids[:prompt])]
            for at in range(prompt - 1, count):
                place = at + 1 - prompt
                logits_BTV[row, at, said[place] if place < len(said) else end] = 5.0
        return logits_BTV

    return model


PARITY = "parity:longest=4"


# --- one pass and decoding -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encodings", "least"),
    [
        pytest.param(("t5",), 5_000, marks=pytest.mark.slow),
        pytest.param(("rope", "nope", "sinusoidal", "alibi"), 20_000, marks=pytest.mark.evidence),
    ],
    ids=["t5", "the others"],
)
@pytest.mark.timeout(900)
def test_one_pass_equals_decoding_on_thousands_of_predictions(encodings, least, figure):
    total = right = near = 0
    for task in ("copy:variant=random:longest=4:alphabet=10", "sort:longest=4", "addition:longest=2:reversed=answer"):
        for encoding in encodings:
            decoder, built = trained(task, encoding, steps=250)
            checked, real = (
                evaluate_decoder(decoder, built, decoding=how, decoding_batch_rows=rows)
                for how, rows in (("checked", 256), ("real", 64))
            )
            assert checked.checks.pass_agrees
            everything = [
                case for split, length in splits_and_lengths(built) for case in evaluation_cases(built, split, length)
            ]
            from lengthwise.evaluation.result import EvaluatedModel

            subject = EvaluatedModel.of(decoder, built, None, 64)
            seen = predict_in_one_pass(subject.logits, everything, built.vocabulary.eos, subject.positions, None)
            for one, judged in zip(seen, real.judged, strict=True):
                at = first_disagreement(one, judged.said)
                if at is not None:
                    near += 1
                    assert one.gap[at] <= NEAR
                elif (one.first_wrong is None) != (judged.kind == "right"):
                    raise AssertionError(f"one pass and decoding differ on {one.case.ids}")
            assert [one.kind for one in checked.judged] == [one.kind for one in real.judged] or near
            total += len(seen)
            right += sum(one.first_wrong is None for one in seen)
    figure(f"one pass = decoding: {total:,} predictions, {right:,} right, {near} near-ties")
    assert total >= least and 0.05 * total < right < 0.95 * total


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["nope", "rope"])
def test_checked_and_real_decoding_find_the_same(encoding):
    decoder, task = trained("copy:variant=same:longest=5:alphabet=40", encoding)
    checked, real = (evaluate_decoder(decoder, task, decoding=how) for how in ("checked", "real"))
    assert outcomes(checked) == outcomes(real)
    assert checked.rows.equals(real.rows) and checked.predictions.equals(real.predictions)
    assert 0 < checked.rows["correct"].sum() < checked.rows["examples"].sum()
    assert (
        checked.rows["examples"] == sum(checked.rows[name] for name in ("correct", "early", "late", "wrong", "cut"))
    ).all()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("task", "positions"),
    [
        ("copy:variant=random:longest=5:alphabet=10", "randomized:limit=64"),
        ("addition:longest=3:reversed=all", "coupled:limit=32"),
        ("addition:longest=3:reversed=all", "abacus:limit=64:starts=8"),
    ],
)
def test_other_positions_decode_as_one_pass_says(task, positions, figure):
    decoder, built = trained(task, "learned:limit=64", positions=positions, steps=200)
    checked, real = (evaluate_decoder(decoder, built, decoding=how, positions=positions) for how in ("checked", "real"))
    assert checked.checks.pass_agrees and outcomes(checked) == outcomes(real)
    kinds = [one.kind for one in real.judged]
    figure(
        f"{positions}: {len(kinds):,} predictions, " + ", ".join(f"{kinds.count(k)} {k}" for k in sorted(set(kinds)))
    )
    assert len(kinds) >= 1000
    longer = [one for one in real.judged if len(one.said) > len(one.case.answer)]
    assert kinds.count("right") and len(set(kinds)) > 2 and longer


@pytest.mark.slow
def test_batch_sizes_agree():
    decoder, task = trained("copy:variant=random:longest=4:alphabet=10", "alibi")
    found = [
        outcomes(evaluate_decoder(decoder, task, decoding="real", examples=24, decoding_batch_rows=rows))
        for rows in (1, 3, 32)
    ]
    assert found[0] == found[1] == found[2]
    one_by_one = [
        outcomes(evaluate_decoder(decoder, task, examples=24, tokens_per_batch=tokens)) for tokens in (1, 100, 16_384)
    ]
    assert one_by_one[0] == one_by_one[1] == one_by_one[2] == found[0]


@pytest.mark.slow
def test_our_decoder_as_a_stranger_finds_the_same():
    decoder, task = trained("copy:variant=same:longest=4:alphabet=40")
    outside = lambda ids_BT, lengths_B: decoder(ids_BT, lengths=lengths_B.tolist())  # noqa: E731
    with torch.no_grad():
        assert outcomes(evaluate_decoder(outside, task)) == outcomes(evaluate_decoder(decoder, task))


# --- planted models --------------------------------------------------------------------------------------------------


def test_a_mask_that_leaks_is_right_in_one_pass_and_scores_nothing():
    task = build_task("copy:variant=random:longest=4:alphabet=10")
    size, end = len(task.vocabulary), task.vocabulary.eos

    def leaking(ids_BT, lengths_B):
        """Sees the next token where there is one, and says that it knew."""
        logits_BTV = torch.zeros(*ids_BT.shape, size)
        following_BT = torch.cat([ids_BT[:, 1:], torch.full_like(ids_BT[:, :1], end)], 1)
        for row, count in enumerate(lengths_B.tolist()):
            following_BT[row, count - 1] = end
        return logits_BTV.scatter(2, following_BT[..., None], 5.0)

    alone = evaluate_decoder(leaking, task, decoding="none")
    assert alone.rows["correct"].sum() == alone.rows["examples"].sum()
    found = evaluate_decoder(leaking, task)
    assert not found.checks.pass_agrees and found.checks.differences > 0
    assert found.rows["correct"].sum() == 0
    assert found.rows["early"].sum() == found.rows["examples"].sum()


@pytest.mark.slow
def test_a_causal_leak_inside_our_own_decoder_is_caught():
    decoder, task = trained("copy:variant=random:longest=4:alphabet=10", steps=60)
    forward = decoder.forward

    def peeking(ids_BT, **options):
        logits = forward(ids_BT, **options)
        only_BT = options.get("only_BT")
        if options.get("cache") is not None or only_BT is None:
            return logits
        following_BT = torch.cat([ids_BT[:, 1:], torch.full_like(ids_BT[:, :1], task.vocabulary.eos)], 1)
        for row, count in enumerate(options["lengths"]):
            following_BT[row, count - 1] = task.vocabulary.eos
        return logits.scatter(1, following_BT[only_BT][:, None], 1e4)

    honest = evaluate_decoder(decoder, task)
    decoder.forward = peeking
    found = evaluate_decoder(decoder, task)
    assert not found.checks.pass_agrees
    assert outcomes(found) == [
        (kind, said, one.content) for (kind, said, _), one in zip(outcomes(honest), found.judged, strict=True)
    ]


def test_failures_are_told_apart():
    task = build_task(PARITY)
    other = task.vocabulary.ids(["0"])[0]
    end = task.vocabulary.eos
    told = {
        "early": (lambda case: case.answer[1:]),
        "late": (lambda case: [*case.answer[:-1], other, end]),
        "wrong": (lambda case: [other, end]),
        "cut": (lambda case: [*case.answer[:-1], *[other] * 50]),
    }
    for kind, answer in told.items():
        rows = evaluate(answering(task, answer), task)
        assert rows[kind].sum() == rows["examples"].sum(), kind
        # Told where to stop, those who stop late or never are right; who says end first has its second best.
        expected = rows["examples"].sum() if kind in {"late", "cut"} else 0
        assert rows["correct_content"].sum() == expected
    assert evaluate(answering(task, lambda case: case.answer), task)["correct"].sum() > 0


def test_an_early_stopper_has_right_content():
    """It would be right if it were told where to stop: the end token is a little likelier than the right one."""
    task = build_task("copy:variant=random:longest=4:alphabet=10")
    right = answering(task, lambda case: case.answer)

    def stops(ids_BT, lengths_B):
        logits_BTV = right(ids_BT, lengths_B)
        logits_BTV[..., task.vocabulary.eos] = 6.0
        return logits_BTV

    rows = evaluate(stops, task)
    assert rows["early"].sum() == rows["examples"].sum() == rows["correct_content"].sum()


def test_a_model_with_most_tokens_right_gets_the_exact_match_of_its_decoding():
    task = build_task("copy:variant=random:longest=6:alphabet=10")

    def slips(case):
        """One wrong token in every third answer: more than 95 % of tokens, two thirds of the answers."""
        if case.index % 3:
            return case.answer
        wrong = 3 + (case.answer[0] - 2) % 10
        return [wrong if wrong != case.answer[0] else wrong + 1, *case.answer[1:]]

    found = evaluate_decoder(answering(task, slips), task, examples=16)
    tokens = sum(a == b for one in found.judged for a, b in zip(one.said, one.case.answer, strict=False))
    assert tokens / sum(len(one.case.answer) for one in found.judged) > 0.95
    assert found.rows["correct"].sum() == sum(one.case.index % 3 > 0 for one in found.judged)


def test_a_token_with_the_pad_id_inside_the_content_changes_nothing():
    decoder, task = trained("copy:variant=random:longest=4:alphabet=10", steps=60)
    from dataclasses import replace

    from lengthwise.evaluation.result import EvaluatedModel

    subject = EvaluatedModel.of(decoder, task, None, 16)
    plain = evaluation_cases(task, "test_seen", 3)[:12]
    padded = [replace(one, ids=[one.ids[0], 0, *one.ids[2:]]) for one in plain]  # the pad's id as the first symbol
    together = predict_in_one_pass(
        subject.logits, [*padded, *evaluation_cases(task, "test_unseen", 7)[:4]], 2, subject.positions, None
    )
    alone = [predict_in_one_pass(subject.logits, [one], 2, subject.positions, None)[0] for one in padded]
    assert [one.chosen.tolist() for one in together[:12]] == [one.chosen.tolist() for one in alone]
    said = subject.decode(padded, [[]] * 12)
    assert said == [subject.decode([one], [[]])[0] for one in padded]


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_past_the_end_of_a_table_an_answer_is_cut_and_nothing_raises():
    decoder, task = trained("copy:variant=same:longest=4:alphabet=40", "learned:limit=12")
    checked, real = (evaluate_decoder(decoder, task, decoding=how) for how in ("checked", "real"))
    assert outcomes(checked) == outcomes(real)
    by_length = {row["length"]: row for row in checked.rows.to_dicts()}
    # Length 8 has a prompt of 10 tokens: room for 3 tokens of its answer. Length 12 has not even room for its prompt.
    assert by_length[8]["correct"] == 0 and by_length[8]["cut"] + by_length[8]["early"] > 0
    assert by_length[12]["cut"] == by_length[12]["examples"] and by_length[12]["loss"] is None
    assert by_length[4]["correct"] > 0


@pytest.mark.parametrize("encoding", list(ENCODINGS))
def test_rows_have_their_types_and_their_sums(encoding):
    decoder = Decoder(preset(SMALL, vocabulary=len(build_task(PARITY).vocabulary)), encoding)
    rows = evaluate(decoder, PARITY, [3, 4, 5, 8])
    assert rows["length"].to_list() == [3, 4, 5, 8] or rows["length"].to_list() == [4, 5, 8]
    assert rows["seen"].to_list()[-3:] == [True, False, False]
    assert rows["split"].to_list()[-1] == "test_unseen"
    assert (rows["examples"] == rows["correct"] + rows["early"] + rows["late"] + rows["wrong"] + rows["cut"]).all()
    assert rows["chance"].to_list()[-1] == 0.5 and rows["run"].is_null().all()


def test_cells_are_counted_apart():
    decoder = Decoder(preset(SMALL, vocabulary=len(build_task("addition").vocabulary)), "nope")
    rows = evaluate(decoder, "addition", [3])
    assert len(rows) > 1 and set(rows["subgroup"]) > {"3-by-3"}
    assert rows["examples"].sum() == 256


@pytest.mark.slow
def test_with_a_scratchpad_the_answer_counts_not_the_way_to_it():
    task = build_task("parity:longest=6:scratchpad=full")

    def detours(case):
        """The right answer after steps in which one bit was misread."""
        symbols = task.vocabulary.read(case.answer[:-1])
        at = symbols.index("0") if "0" in symbols else symbols.index("1")
        symbols[at] = "1" if symbols[at] == "0" else "0"
        return [*task.vocabulary.ids(symbols), task.vocabulary.eos]

    found = evaluate_decoder(answering(task, detours), task, [5, 6])
    assert found.rows["correct"].sum() == found.rows["examples"].sum()
    assert found.judged and all(one.said != one.case.answer for one in found.judged)

    def wrong(case):
        symbols = task.vocabulary.read(case.answer[:-1])
        symbols[-1] = "odd" if symbols[-1] == "even" else "even"
        return [*task.vocabulary.ids(symbols), task.vocabulary.eos]

    found = evaluate_decoder(answering(task, wrong), task, [5, 6])
    assert found.rows["correct"].sum() == 0
    assert set(found.predictions["component"]) == {"answer"} and found.predictions["step"].is_null().all()


@pytest.mark.slow
def test_predictions_hold_every_wrong_answer_and_the_ranges_of_the_right_ones():
    decoder, task = trained("copy:variant=same:longest=4:alphabet=40")
    found = evaluate_decoder(decoder, task)
    whole = {}
    for line in found.predictions.to_dicts():
        for index in range(line["first"], line["last"] + 1):
            assert (line["split"], line["length"], index) not in whole
            whole[line["split"], line["length"], index] = line["kind"]
            assert (line["said"] is None) == (line["kind"] == "right")
            if line["kind"] != "right":
                assert line["first"] == line["last"]
                assert line["said"] != line["answer"] or line["kind"] == "cut"
    assert whole == {(o.case.split, o.case.length, o.case.index): o.kind for o in found.judged}


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (3, "a model is a run, a decoder or a function"),
        (lambda ids, lengths: ids, r"must return logits \(\d+, \d+, V\), not"),
        (lambda ids, lengths: torch.zeros(*ids.shape, 2), "the model has 2 logits, parity has"),
        (Decoder(preset(SMALL, vocabulary=4), "nope"), "it was made for another task"),
    ],
)
def test_what_is_no_model_is_refused(model, said):
    with pytest.raises(SpecError, match=said):
        evaluate(model, PARITY, [4])


def test_a_length_the_task_does_not_have_is_refused():
    decoder = Decoder(preset(SMALL, vocabulary=64), "nope")
    with pytest.raises(SpecError, match="sort has no length 1"):
        evaluate(decoder, "sort", [1])
    with pytest.raises(SpecError, match="the original study has no sort of length 40"):
        evaluate(decoder, "sort:protocol=paper", [40])


def test_where_there_is_nothing_to_test_it_says_so():
    decoder = Decoder(preset(SMALL, vocabulary=len(build_task(PARITY).vocabulary)), "nope")
    with pytest.raises(SpecError, match="parity has no test examples of length 1"):
        evaluate(decoder, PARITY, [1])


def test_every_run_is_asked_the_same():
    first = [case.ids for case in evaluation_cases(build_task("addition"), "test_unseen", 9)]
    assert first == [case.ids for case in evaluation_cases(build_task("addition"), "test_unseen", 9)]
    assert len(first) == 256


def test_lengths_after_two_without_a_right_answer_are_recorded_as_0_and_marked():
    task = build_task("sort:longest=4")
    asked = []

    def right_up_to_5_and_at_8(case):
        return case.answer if case.length <= 5 or case.length == 8 else case.answer[:-2] + case.answer[-1:]

    model = answering(task, right_up_to_5_and_at_8)

    def counted(ids_BT, lengths_B):
        asked.append(ids_BT.shape)
        return model(ids_BT, lengths_B)

    whole = evaluate_decoder(counted, task, examples=8).rows.sort("length")
    widest = max(tokens for _, tokens in asked)
    asked.clear()
    cut = evaluate_decoder(counted, task, examples=8, stop_after_zeros=2).rows.sort("length")
    assert max(tokens for _, tokens in asked) < widest
    assert cut.filter(cut["length"] <= 7).equals(whole.filter(whole["length"] <= 7))
    rest = cut.filter(cut["length"] > 7)
    assert rest["length"].to_list() == whole.filter(whole["length"] > 7)["length"].to_list()
    assert rest["correct"].sum() == 0 and rest["tokens"].null_count() == rest.height
    assert (rest["wrong"] == rest["examples"]).all() and rest["chance"].equals(
        whole.filter(whole["length"] > 7)["chance"]
    )
    assert whole.filter(whole["length"] == 8)["correct"].item() == 8  # the rule is not harmless: it is a shortcut
    same = evaluate_decoder(counted, task, examples=8, stop_after_zeros=3).rows.sort("length")
    assert same.equals(whole)


def test_what_is_left_out_has_the_examples_and_subgroups_of_its_length():
    task = build_task("addition:longest=2")
    model = answering(task, lambda case: case.answer[-1:])
    whole = evaluate_decoder(model, task, examples=40).rows.sort("length", "subgroup")
    cut = evaluate_decoder(model, task, examples=40, stop_after_zeros=1).rows.sort("length", "subgroup")
    assert cut["tokens"].null_count() and whole["subgroup"].n_unique() > 3
    assert cut.select("split", "length", "subgroup", "examples", "seen", "chance").equals(
        whole.select("split", "length", "subgroup", "examples", "seen", "chance")
    )
    assert cut.filter(cut["seen"])["tokens"].null_count() == 0  # seen lengths are always evaluated
    parity = build_task("parity")  # whose shortest lengths have no test examples
    empty = answering(parity, lambda case: case.answer)
    assert evaluate_decoder(empty, parity, examples=2, stop_after_zeros=2).rows["correct"].sum() > 10
