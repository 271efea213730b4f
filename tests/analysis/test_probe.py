"""Probes find what is planted, nothing where nothing is, and leaks through their controls."""

import json
import math

import pytest
import torch
from typer.testing import CliRunner

from lengthwise.analysis.documents import (
    Document,
    document_batches,
    drop_training_documents,
    random_document_sets,
    random_documents,
    task_documents,
)
from lengthwise.analysis.probe import (
    _network,
    baselines,
    best_constant_error,
    fit_mlp,
    mae_gradients,
    probe,
    probe_all,
    random_guess_error,
    score_predictions,
)
from lengthwise.analysis.spread import power_law_exponent, spread
from lengthwise.analysis.states import States, collect_states, decoder_state_reader, equalise_output_norm, times_root_m
from lengthwise.cli import app
from lengthwise.encoding import ENCODINGS
from lengthwise.interface.probing import baseline_sentences, probe_table, theorem1_states
from lengthwise.model import Decoder, preset
from lengthwise.run import train
from lengthwise.spec import SpecError
from lengthwise.task import build_task

START = 1
SYMBOLS = range(3, 40)


def planted(places_N: torch.Tensor, width: int = 12, seed: int = 0) -> States:
    """States of noise, turned, of which one direction is the place."""
    stream = torch.Generator().manual_seed(seed)
    x_ND = torch.randn(len(places_N), width, generator=stream, dtype=torch.float64)
    x_ND[:, 0] = places_N / 10
    turn_DD, _ = torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(7)).double())
    return States({1: x_ND @ turn_DD}, places_N, torch.full_like(places_N, 5), 1)


def decoder(encoding="nope", layers=2, seed=0, **changes) -> Decoder:
    return Decoder(preset(f"laptop:layers={layers}", vocabulary=40, **changes), encoding, seed=seed)


def at(rows, **which):
    (found,) = [row for row in rows if which.items() <= row.items()]
    return found


# --- baselines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [2, 8, 34, 512, 1024])
def test_baselines_of_equally_frequent_places_are_the_published_ones(length):
    places = torch.arange(length)
    assert math.isclose(random_guess_error(places), (length**2 - 1) / (3 * length), abs_tol=1e-9)
    assert math.isclose(best_constant_error(places), length / 4, abs_tol=1e-9)


def test_baselines_are_exact_for_places_that_are_not():
    places = torch.tensor([0, 0, 0, 1, 1, 2, 5, 9, 9, 30])
    pairs = (places[:, None] - places[None]).abs().double().mean()
    least = min((places - c).abs().double().mean() for c in range(31))
    assert math.isclose(random_guess_error(places), pairs, abs_tol=1e-9)
    assert math.isclose(best_constant_error(places), least, abs_tol=1e-9)


def test_the_token_alone_knows_a_tokens_median_place():
    def states(ids, places):
        return States({}, torch.tensor(places), torch.tensor(ids), 1)

    found = baselines(states([1, 1, 1, 2, 2], [0, 0, 0, 4, 6]), states([1, 2, 3], [0, 7, 4]))
    # 1 was at 0; 2 at 4 (of 4 and 6 the lower); 3 is new: the median of all, 0.
    assert math.isclose(found.token, (0 + 3 + 4) / 3, abs_tol=1e-9)
    assert (found.third, found.quarter) == (8 / 3, 2.0)


# --- probes ----------------------------------------------------------------------------------------------------------


def test_a_linear_probe_reads_a_planted_place_exactly_and_beyond_what_it_saw(figure):
    trained, tested = planted(torch.arange(600) % 30), planted(torch.arange(600) % 60, seed=1)
    rows = probe(trained, {"unseen": tested}, probe_kinds=["linear"])
    worst = max(row["mae"] for row in rows)
    figure(f"planted place, linear probe: error {worst:.1e} tokens, also at places it never saw")
    assert {row["tested"] for row in rows} == {"unseen", "beyond"}
    assert worst < 1e-3
    assert all(row["accuracy"] == 1 and row["r2"] > 1 - 1e-6 for row in rows)


def test_an_mlp_reads_what_is_not_linear(figure):
    places = torch.arange(8000) % 34
    inverse = States({1: _with_inverse(places)}, places, torch.zeros_like(places), 1)
    other = States({1: _with_inverse(places, 1)}, places, torch.zeros_like(places), 1)
    rows = probe(inverse, {"seen": other})
    linear, mlp = (at(rows, probe=kind)["mae"] for kind in ("linear", "mlp"))
    figure(f"planted 1/t of 34: linear probe {linear:.2f} tokens, MLP {mlp:.2f}, best constant 8.5")
    assert mlp < 0.5 < 5 < linear < 8.5


def _with_inverse(places_N, seed=0):
    x_ND = 1e-3 * torch.randn(len(places_N), 16, generator=torch.Generator().manual_seed(seed))
    x_ND[:, 3] = 1 / (places_N + 1)
    return x_ND


def test_shuffled_places_give_the_best_constant(figure):
    trained, tested = planted(torch.arange(6000) % 32), planted(torch.arange(2000) % 32, seed=1)
    rows = probe(trained, {"seen": tested}, shuffle_train_positions=True)
    for row in rows:
        figure(f"shuffled places, {row['probe']}: {row['mae']:.2f}, best constant {row['constant']:.2f}")
        assert 0.97 < row["mae"] / row["constant"] < 1.1
        assert row["r2"] < 0.02


def test_states_that_are_all_alike_are_no_error():
    places = torch.arange(64)
    same = States({0: torch.ones(64, 4)}, places, places, 1)
    for row in probe(same, {"seen": same}):
        assert math.isclose(row["mae"], 16, abs_tol=0.2)


def test_a_perfect_and_a_hopeless_prediction_are_scored_so():
    places = torch.arange(10)
    assert vars(score_predictions(places.double(), places)) == {"mae": 0, "r2": 1, "accuracy": 1, "tokens": 10}
    found = score_predictions(places.double().mean().repeat(10), places)
    assert (found.mae, found.r2, found.accuracy) == (2.5, 0, 0.1)  # 4.5 is rounded to 4
    assert score_predictions(torch.ones(3).double(), torch.ones(3)).r2 is None


def test_networks_that_are_trained_together_are_as_those_trained_alone():
    places, states = torch.arange(500) % 20, [planted(torch.arange(500) % 20, seed=s).layers[1] for s in range(3)]
    together = fit_mlp(states, places, seed=3, steps=30)
    for state_ND, one in zip(states, together, strict=True):
        (alone,) = fit_mlp([state_ND], places, seed=3, steps=30)
        assert torch.allclose(one(state_ND), alone(state_ND), atol=1e-2)


def test_written_out_gradients_are_those_of_autograd():
    stream = torch.Generator().manual_seed(0)
    shapes = [(3, 5, 7), (3, 1, 7), (3, 7, 1), (3, 1, 1)]
    parameters = [torch.randn(shape, generator=stream).double().requires_grad_() for shape in shapes]
    x_MND, y_N = torch.randn(3, 11, 5, generator=stream).double(), torch.randn(11, generator=stream).double()
    loss = (_network(x_MND, parameters) - y_N).abs().mean(1).sum()
    loss.backward()
    with torch.no_grad():
        for parameter, slope in zip(parameters, mae_gradients(x_MND, y_N, parameters), strict=True):
            assert torch.allclose(parameter.grad, slope, atol=1e-12)


def test_an_unknown_kind_is_named():
    with pytest.raises(SpecError, match="no probe 'quadratic'; there are linear, mlp"):
        probe(planted(torch.arange(9)), {}, probe_kinds=["quadratic"])


# --- documents -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["copy:variant=same:longest=6", "reverse:variant=once:longest=4", "parity:longest=5"])
def test_documents_of_training_and_test_are_others(name):
    trained, tested = task_documents(build_task(name), examples=24)
    known = {one.ids for one in trained}
    longest = build_task(name).longest
    assert {one.length for one in trained} <= set(range(longest + 1))
    assert all(one.length > longest for one in tested["unseen"])
    for found in tested.values():
        assert found and not known & {one.ids for one in found}
        assert len({one.ids for one in found}) == len(found)


def test_a_document_that_is_in_both_is_not_tested():
    one, two = Document((1, 2, 3), 3, 3), Document((1, 2, 4), 3, 3)
    assert drop_training_documents([one], [Document((1, 2, 3), 3, 3), two, two]) == [two]


def test_lengths_that_are_not_there_are_refused():
    task = build_task("copy:variant=same:longest=6")
    assert set(task_documents(task, [4, 9])[1]) == {"seen", "unseen"}
    with pytest.raises(SpecError, match="of length 999"):
        task_documents(task, [4, 999])


def test_padding_is_never_collected():
    documents = [Document(tuple(range(1, n + 1)), n, n) for n in (3, 9, 5)]
    (batch,) = document_batches(documents)

    def read(batch, keep):
        keep(0, torch.stack([batch.ids_BT.float(), batch.token_indices_BT.float()], -1))

    found = collect_states(read, documents)
    assert batch.lengths == [3, 5, 9] and len(found.places_N) == 17
    assert torch.equal(found.layers[0][:, 0], found.layers[0][:, 1] + 1)
    assert torch.equal(found.ids_N, found.places_N + 1)
    fewer = collect_states(read, documents, max_tokens=6)
    assert len(fewer.places_N) == len(fewer.layers[0]) == 6


# --- models ----------------------------------------------------------------------------------------------------------


def test_embeddings_know_no_place_and_a_leak_is_found_there(figure):
    model = decoder()
    trained, tested = random_document_sets(SYMBOLS, 24, first_token=START, count=128)
    honest = decoder_state_reader(model)

    def leaking(batch, keep):
        def more(layer, state_BTD):
            added = 0.02 * batch.token_indices_BT[..., None] * torch.eye(state_BTD.shape[-1])[0]
            keep(layer, state_BTD + added if layer == 0 else state_BTD)

        honest(batch, more)

    rows = probe_all(
        {("trained", "none"): honest, ("untrained", "none"): leaking}, trained, tested, probe_kinds=["linear"]
    )
    clean = at(rows, model="trained", control="none", layer=0, probe="linear", tested="seen")
    leak = at(rows, model="untrained", layer=0, probe="linear", tested="seen")
    figure(f"layer 0: {clean['mae']:.2f} (token alone {clean['token']:.2f}); with a planted leak {leak['mae']:.2f}")
    assert 0.95 < clean["mae"] / clean["token"] < 1.1
    assert leak["mae"] < 0.1 * leak["token"]


@pytest.mark.slow
def test_a_place_that_is_added_to_embeddings_is_read_in_layer_0_and_that_of_others_is_not():
    trained, tested = random_document_sets(SYMBOLS, 24, first_token=START, count=128)
    for encoding in ENCODINGS:
        name = f"{encoding}:limit=64" if encoding == "learned" else encoding
        rows = probe_all(
            {("trained", "none"): decoder_state_reader(decoder(name, 1))}, trained, tested, probe_kinds=["linear"]
        )
        found = at(rows, control="none", layer=0, tested="seen")
        told = decoder(name, 1)._encodings()[0].overrides("embed")
        assert (found["mae"] < 0.6 * found["token"]) == told, name


@pytest.mark.slow
def test_probes_are_the_same_bit_for_bit():
    trained, tested = random_document_sets(SYMBOLS, 16, first_token=START, count=32)
    reads = {("trained", change): decoder_state_reader(decoder(layers=1), head_tap=tap) for change, tap in TAPS.items()}
    first, second = (probe_all(reads, trained, tested, seed=5) for _ in range(2))
    assert first == second
    other = probe_all(reads, trained, tested, seed=6, probe_kinds=["linear"])
    same = [row for row in first if row["probe"] == "linear"]
    assert len(other) == len(same) and other != same  # its places are dealt out otherwise
    assert not [row for row in first if row["change"] == "root_m" and row["layer"] == 0]


TAPS = {"none": None, "root_m": times_root_m}


def test_the_constructed_state_is_read_without_error_and_fails_beyond_by_the_closed_form(figure):
    tokens = 48
    trained, tested = random_document_sets(SYMBOLS, tokens, first_token=START, count=64)
    read = theorem1_states(40, START, tokens)
    rows = probe_all({("constructed", "none"): read}, trained, tested)
    seen = at(rows, layer=1, tested="seen")
    figure(f"Theorem 1's state of {tokens} tokens, linear probe: {seen['mae']:.1e} tokens")
    assert seen["mae"] < 1e-3 and seen["accuracy"] == 1
    states = collect_states(read, tested["unseen"])
    t_N = states.places_N.double() + 1
    said_N = states.layers[1][:, 2]
    beyond_N = 1 + 2 * tokens - tokens * (tokens + 1) / t_N
    assert torch.allclose(said_N, torch.where(t_N <= tokens, t_N, beyond_N), atol=1e-9)


def test_the_same_tokens_are_read_whatever_is_padded():
    documents = random_documents(SYMBOLS, 9, 5) + random_documents(SYMBOLS, 17, 5)
    model = decoder("rope").double()
    states = collect_states(decoder_state_reader(model), documents)
    alone = [collect_states(decoder_state_reader(model), [one]) for one in documents]
    for layer in states.layers:
        assert torch.allclose(states.layers[layer], torch.cat([one.layers[layer] for one in alone]), atol=1e-9)
    assert sorted(states.layers) == [0, 1, 2]


# --- spread ----------------------------------------------------------------------------------------------------------


def test_variance_falls_as_one_over_m_at_the_start_and_root_m_undoes_it(figure):
    documents = random_documents(SYMBOLS, 64, 256)
    plain, changed = (spread(decoder(layers=1), documents, head_tap=tap) for tap in TAPS.values())
    slopes = [power_law_exponent(row for row in rows if row["quantity"] == "output") for rows in (plain, changed)]
    figure(f"variance of attention's output at the start: m^{slopes[0]:.2f}; times √m: m^{slopes[1]:.2f}")
    assert abs(slopes[0] + 1) < 0.1
    assert math.isclose(slopes[1], slopes[0] + 1, abs_tol=1e-4)


def test_one_size_leaves_directions_and_takes_sizes():
    documents = random_documents(SYMBOLS, 24, 40, first_token=START) + random_documents(
        SYMBOLS, 9, 10, first_token=START
    )
    model = decoder(layers=2)
    change = equalise_output_norm(model, documents)
    heads_BHQE = torch.randn(2, 4, 5, 16) * torch.arange(1, 6)[:, None]
    changed_BHQE = change("layers.0.heads", heads_BHQE)
    sizes_BQ = changed_BHQE.square().mean((1, 3)).sqrt()
    assert torch.allclose(sizes_BQ, sizes_BQ[0, 0].expand_as(sizes_BQ))
    assert torch.allclose(
        changed_BHQE / sizes_BQ[0, 0], heads_BHQE / heads_BHQE.square().mean((1, 3), keepdim=True).sqrt()
    )
    # The size is the mean one over the documents, padding left out.
    seen = []
    for one in documents:
        model(torch.tensor([one.ids]), taps={"layers.0.heads": lambda _, x: seen.append(x.detach().flatten())})
    assert math.isclose(float(sizes_BQ[0, 0]), float(torch.cat(seen).square().mean().sqrt()), rel_tol=1e-5)


def test_without_a_causal_mask_variance_does_not_fall():
    rows = spread(decoder(layers=1, mask="bidirectional"), random_documents(SYMBOLS, 64, 256))
    assert abs(power_law_exponent(row for row in rows if row["quantity"] == "output")) < 0.05


def test_spread_is_what_a_dense_computation_gives():
    documents = random_documents(SYMBOLS, 12, 40, first_token=START)
    model = decoder(layers=2).double()
    ids_BT = torch.tensor([one.ids for one in documents])
    seen = {}
    model(ids_BT, taps={"layers.*.heads": lambda name, x: seen.update({name: x.detach()})})
    for layer in (1, 2):
        heads_BHQE = seen[f"layers.{layer - 1}.heads"]
        out_BTD = model.layers[layer - 1].attention.out(heads_BHQE.transpose(1, 2).flatten(2)).detach()
        rows = [row for row in spread(model, documents) if (row["layer"], row["quantity"]) == (layer, "output")]
        assert [row["m"] for row in rows] == list(range(1, 13))
        wanted = out_BTD.var(0).mean(1)
        assert torch.allclose(torch.tensor([row["variance"] for row in rows]).double(), wanted, rtol=1e-6, atol=1e-12)
        power = out_BTD.square().mean((0, 2))
        assert torch.allclose(torch.tensor([row["power"] for row in rows]).double(), power, rtol=1e-6)


# --- what is shown ---------------------------------------------------------------------------------------------------


def test_the_table_and_the_sentence_say_what_the_rows_say():
    trained, tested = random_document_sets(SYMBOLS, 16, first_token=START, count=32)
    reads = {
        ("trained", "none"): decoder_state_reader(decoder()),
        ("untrained", "none"): decoder_state_reader(decoder(seed=1)),
        ("constructed", "none"): theorem1_states(40, START, 16),
    }
    labels = {"task": "copy", "documents": "task", "encoding": "nope", "seed": 0}
    rows = [labels | row for row in probe_all(reads, trained, tested, probe_kinds=["linear"])]
    (line,) = probe_table(rows, "copy", "task")
    wanted = at(rows, model="trained", control="none", layer=1, tested="seen")["mae"]
    assert line["layer 1"] == round(wanted, 2)
    assert {"layer 0", "layer 2", "unseen lengths", "beyond", "untrained", "shuffled"} <= set(line)
    assert "with √m" not in line
    told = baseline_sentences(rows, "copy", "task")
    assert "L/3 is 5.33" in told and "L/4 is 4.00" in told and "Theorem 1's state" in told


def said(*arguments):
    return CliRunner().invoke(app, ["probe", *map(str, arguments)])


@pytest.mark.slow
def test_the_command_probes_runs_writes_rows_and_goes_on_where_it_was(tmp_path):
    store, to = tmp_path / "store", tmp_path / "out"
    for seed in (0, 1):
        run = train(
            "copy:variant=same:longest=3",
            "nope",
            model="laptop:layers=1",
            training="laptop:steps=2:batch_size=8",
            seed=seed,
            store=str(store),
            quiet=True,
        )
    common = (
        "--store",
        store,
        "--to",
        to,
        "--kind",
        "linear",
        "--scale-by-root-m",
        "--equalise-output-norm",
        "--spread",
    )
    first = said("copy-nope-s0", *common, "--json")
    assert first.exit_code == 0, first.output
    told = json.loads(first.stdout)
    (line,) = told["tables"][0]["lines"]
    assert {"layer 0", "layer 1", "untrained", "shuffled", "with √m", "one size"} <= set(line)
    assert told["spread"][0].keys() >= {"trained", "at the start"}
    before = (to / "probe.parquet").read_bytes()
    both = said("copy-nope-s0", run.id, *common)
    assert both.exit_code == 0 and "without a state: random guess" in both.stdout
    import polars as pl

    rows = pl.read_parquet(to / "probe.parquet")
    assert rows["run"].n_unique() == 2
    assert rows.filter(pl.col("seed") == 0).equals(pl.read_parquet(before))
    again = said("--rows", to, "--to", tmp_path / "again")
    assert again.exit_code == 0
    for name in ("probe-linear.svg", "probe-changed-linear.svg", "probe-spread-task.svg"):
        assert (tmp_path / "again" / name).read_bytes() == (to / name).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name runs, or a study"),
        (("x", "--documents", "rand"), "no documents 'rand'"),
        (("x", "--encodings", "nope"), "give --study"),
        (("x", "--rows", "."), "leave out the runs"),
        (("no-such-run",), "there is no run 'no-such-run'"),
    ],
)
def test_mistakes_are_told(arguments, words, tmp_path):
    found = said(*arguments, "--store", tmp_path, "--to", tmp_path)
    assert found.exit_code != 0
    assert isinstance(found.exception, SpecError) and words in str(found.exception)
