"""What a decoder without positions can know of order: exact where it cannot, trained where it can."""

import itertools
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from lengthwise.cli import app
from lengthwise.encoding.positions import Consecutive
from lengthwise.evaluation.cases import evaluation_cases
from lengthwise.evaluation.decoding import decoder_decode_function
from lengthwise.evaluation.onepass import decoder_logits_function, predict_in_one_pass
from lengthwise.interface.order import train_order_models
from lengthwise.model import Decoder, preset
from lengthwise.spec import SpecError
from lengthwise.task import build_task
from lengthwise.task.block import training_block
from lengthwise.theory.order import (
    VOCABULARY,
    best_guess_accuracy_from_multiset,
    masked_logit_spread,
    order_check_rows,
    permuted_prompt_effect,
    shuffled_prefix_effect,
    shuffles,
    untrained_decoder,
)
from lengthwise.training.batches import make_batch
from lengthwise.training.loop import total_loss

ROUNDING = 1e-12


def sequences(tokens, seed=0):
    return torch.randint(1, VOCABULARY, (4, tokens), generator=torch.Generator().manual_seed(seed))


def test_shuffles_are_permutations_and_keep_the_end():
    ids = torch.arange(10)
    found = shuffles(ids, 20, keep_last=2)
    assert all(sorted(row.tolist()) == list(range(10)) and row[-2:].tolist() == [8, 9] for row in found)
    assert len({tuple(row.tolist()) for row in found}) > 15
    with pytest.raises(SpecError, match="cannot be shuffled"):
        shuffles(ids[:2], 1, keep_last=1)


@pytest.mark.parametrize("tokens", [3, 24, 200])
def test_one_layer_does_not_see_the_order_before_the_last_token(tokens, figure):
    ids, targets = sequences(tokens), torch.arange(4)
    change = shuffled_prefix_effect(untrained_decoder("causal", 1, sigma=0.2), ids, targets)
    figure(f"shuffled prefix of {tokens}, one NoPE layer: logits {change.logits:.1e}, loss {change.loss:.1e}")
    assert change.logits < ROUNDING and abs(change.loss) < ROUNDING


@pytest.mark.parametrize("layers", [2, 3])
def test_two_layers_do(layers, figure):
    ids, targets = sequences(24), torch.arange(4)
    change = shuffled_prefix_effect(untrained_decoder("causal", layers, sigma=0.2), ids, targets)
    figure(f"shuffled prefix of 24, {layers} NoPE layers: logits {change.logits:.2g}, loss {change.loss:+.2g}")
    assert change.logits > 0.1 * change.scale


def test_with_the_last_token_shuffled_too_one_layer_changes_without_any_order():
    ids, targets = sequences(24), torch.arange(4)
    decoder = untrained_decoder("causal", 1, sigma=0.2)
    assert shuffled_prefix_effect(decoder, ids, targets, keep_last=False).logits > 0.1


@pytest.mark.parametrize("layers", [1, 4])
def test_all_masks_of_a_sequence_get_the_same_logits(layers, figure):
    ids, places = sequences(40), [1, 5, 20, 39]
    blind = masked_logit_spread(untrained_decoder("bidirectional", layers, sigma=0.2), ids, 0, places)
    figure(f"masked language model, {layers} layers, no positions: masks differ by {blind.logits:.1e}")
    assert blind.logits < ROUNDING
    assert (
        masked_logit_spread(untrained_decoder("bidirectional", layers, "sinusoidal", sigma=0.2), ids, 0, places).logits
        > 0.1
    )
    assert masked_logit_spread(untrained_decoder("causal", layers, sigma=0.2), ids, 0, places).logits > 0.1


@pytest.mark.parametrize("layers", [1, 2, 6])
def test_under_a_prefix_mask_the_prompt_is_a_multiset(layers, figure):
    ids = sequences(20)
    change = permuted_prompt_effect(untrained_decoder("prefix", layers, sigma=0.2), ids, 10)
    figure(f"permuted prompt, prefix mask, {layers} layers: logits {change.logits:.1e}, loss {change.loss:.1e}")
    assert change.logits < ROUNDING and abs(change.loss) < ROUNDING
    for encoding in ("t5", "rope", "alibi"):
        assert permuted_prompt_effect(untrained_decoder("prefix", layers, encoding, sigma=0.2), ids, 10).logits > 1e-3


def test_a_causal_prompt_has_an_order_from_two_layers():
    ids = sequences(20)
    assert permuted_prompt_effect(untrained_decoder("causal", 2, sigma=0.2), ids, 10).logits > 0.1


def test_the_guess_from_a_multiset_is_the_best_there_is():
    """Counted: for each multiset one of its orders is right."""
    for symbols, length in ((3, 4), (4, 2), (2, 6)):
        every = list(itertools.product(range(symbols), repeat=length))
        multisets = {tuple(sorted(one)) for one in every}
        assert best_guess_accuracy_from_multiset(symbols, length) == pytest.approx(len(multisets) / len(every))


@pytest.mark.slow
def test_every_check_comes_out_as_expected(tmp_path):
    for row in order_check_rows():
        assert (row["change"] < ROUNDING) == (row["expected"] == "no change"), row
    done = CliRunner().invoke(app, ["theory", "order", "--to", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["rows"]) == 11
    assert (tmp_path / "theory-order.svg").exists()


def test_training_and_evaluation_give_a_prefix_model_its_prompts():
    """One pass, decoding with a cache, and the training's own batches agree on what the prompt is."""
    task = build_task("copy:variant=random:alphabet=20:longest=6")
    block = training_block(task, 0, 16)
    batch = make_batch(block, np.arange(16), Consecutive(), 0)
    assert batch.prompt_lengths_B.tolist() == block.prompt_lengths_N.tolist()
    decoder = Decoder(preset("laptop", vocabulary=len(task.vocabulary), mask="prefix", sigma=0.3), "nope").eval()
    with torch.no_grad():
        logits = decoder(batch.ids_BT, lengths=batch.tokens_B.tolist(), prefix=block.prompt_lengths_N.tolist())
    loss = F.cross_entropy(logits[:, :-1][batch.loss_BT[:, 1:]], batch.targets_N, reduction="sum")
    assert total_loss(decoder, batch, prefix_mask=True).item() == pytest.approx(loss.item(), rel=1e-5)
    asked = [case for length in (3, 5) for case in evaluation_cases(task, "test_seen", length, examples=8)]
    end = task.vocabulary.eos
    seen = predict_in_one_pass(decoder_logits_function(decoder, Consecutive()), asked, end, Consecutive(), None)
    begun = [case.answer[: n % 3] for n, case in enumerate(asked)]
    said = decoder_decode_function(decoder, Consecutive(), end)(asked, begun)
    for n, (one, words) in enumerate(zip(seen, said, strict=True)):
        assert words[n % 3] == one.chosen[n % 3]


def shares(rows):
    """Mean exact match at the seen lengths from 2 of each (task, mask), and the mean guess of copying."""
    seen = [row for row in rows if row["seen"] and row["length"] > 1]
    pairs = {(row["task"], row["mask"]) for row in seen}
    found = {
        pair: [row["correct"] / row["examples"] for row in seen if (row["task"], row["mask"]) == pair] for pair in pairs
    }
    guess = [row["guess"] for row in seen if row["mask"] == "causal"]
    return {pair: sum(each) / len(each) for pair, each in found.items()}, sum(guess) / len(guess)


@pytest.mark.evidence
def test_a_small_prefix_model_sorts_and_does_not_copy(tmp_path, figure):
    rows = train_order_models(str(tmp_path), alphabet=10, longest=4, steps=400, model="laptop:layers=2")
    found, guess = shares(rows)
    figure(f"trained, lengths 2 to 4 of 10 symbols, 400 steps: {found}; guess {guess:.3f}")
    assert found["sort", "prefix"] > 0.9
    assert found["copy", "prefix"] < guess + 0.1


@pytest.mark.evidence
@pytest.mark.timeout(1800)
def test_sorting_is_learned_and_copying_is_not_under_a_prefix_mask(tmp_path, figure):
    rows = train_order_models(str(tmp_path))
    found, guess = shares(rows)
    figure(f"trained, lengths 2 to 8 of 20 symbols, 1500 steps: {found}; guess {guess:.3f}")
    assert found["sort", "prefix"] > 0.98
    assert found["copy", "causal"] > 0.98
    assert found["copy", "prefix"] < guess + 0.02
    for row in rows:
        if row["shuffled"] is not None:  # another order of the prompt: nothing, or nats
            assert abs(row["shuffled"]) < 1e-5 if row["mask"] == "prefix" else row["shuffled"] > 1
