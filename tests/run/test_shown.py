"""A run shown and handed on: its attention to one prompt, and its model as a Hugging Face folder."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from lengthwise import train
from lengthwise.reporting.attention import attention_heat_maps
from lengthwise.run.ask import ask, attention
from lengthwise.spec import SpecError
from tests.run.test_cli_runs import cli

MODEL = "laptop:width=16:heads=2:head_width=8:layers=2"
TRAINING = "laptop:steps=40:batch_size=16:lr=0.005:validations=1"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("shown")


@pytest.fixture(scope="module")
def run(place):
    store = str(place / "lengthwise-store")
    return train("parity:longest=4", "rope", model=MODEL, training=TRAINING, store=store, quiet=True)


@pytest.mark.slow
def test_the_heat_map_is_the_attention_of_prompt_and_answer(run):
    found = attention(run, "1 0 1")
    assert found.tokens == ["<bos>", "1", "0", "1", "=", *ask(run, "1 0 1").said] and found.prompt == 5
    layers, heads, queries, keys = found.weights_LHQK.shape
    assert (layers, heads) == (2, 2) and queries == keys == len(found.tokens)
    assert np.allclose(found.weights_LHQK.sum(-1), 1, atol=1e-5)
    assert not found.weights_LHQK[..., np.triu_indices(queries, 1)[0], np.triu_indices(queries, 1)[1]].any()
    drawing = attention_heat_maps(found.tokens, found.prompt, found.weights_LHQK, found.title)
    assert drawing.data.height == layers * heads * queries * (queries + 1) // 2
    svg = drawing._repr_svg_()
    for words in ("layer 1, head 1", "layer 2, head 2", "&lt;bos&gt;", "RoPE, seed 0, length 3, as in training"):
        assert words in svg


def test_attention_from_the_command_line(run, place):
    done = cli("attention", run.id[:14], "1 0 1 1 1 1", "--to", "out/map.svg", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "RoPE, seed 0, length 6, trained up to 4: 2 layers × 2 heads" in done.stdout
    assert (place / "out" / "map.svg").read_text().startswith("<svg")
    wrong = cli("attention", run.id[:14], "1 x", cwd=place)
    assert wrong.returncode == 2 and "parity does not know 'x'" in wrong.stderr


LOAD = """
{first}
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained("model")
tokenizer = AutoTokenizer.from_pretrained("model")
ids = tokenizer(["1 0 1 =", "1 ="], return_tensors="pt", padding=True)
for row in model.generate(**ids):
    print(tokenizer.decode(row, skip_special_tokens=True))
print(model.config.eos_token_id, model.generation_config.eos_token_id, tokenizer.eos_token_id)
"""


@pytest.mark.slow
def test_an_exported_model_is_loaded_stops_and_says_the_same(run, place):
    pytest.importorskip("transformers", reason="needs the extra hf")
    done = cli("export-model", run.id[:14], "model", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "import lengthwise.hf" in done.stdout and 'from_pretrained("model")' in done.stdout
    code = LOAD.format(first="import lengthwise.hf")
    loaded = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=False)
    assert loaded.returncode == 0, loaded.stderr[-2000:]
    first, second, ends = loaded.stdout.splitlines()[-3:]
    for prompt, line in (("1 0 1", first), ("1", second)):
        wanted = ask(run, prompt)
        assert line == " ".join([*prompt.split(), "=", *wanted.said[: len(line.split()) - len(prompt.split()) - 1]])
        assert wanted.cut or line.endswith(wanted.said[-1]), "it stops where our own decoding stops"
    assert ends == "2 2 2"
    without = subprocess.run(
        [sys.executable, "-c", LOAD.format(first="")], cwd=place, capture_output=True, text=True, check=False
    )
    assert without.returncode != 0 and "import lengthwise.hf first" in without.stderr


def test_positions_that_generate_cannot_count_are_not_exported(place):
    pytest.importorskip("transformers", reason="needs the extra hf")
    from lengthwise.encoding import build_positions
    from lengthwise.hf.export import export_model
    from lengthwise.model import Decoder, preset
    from lengthwise.task import build_task

    task = build_task("addition:longest=3")
    decoder = Decoder(preset("laptop", vocabulary=len(task.vocabulary)), "learned")
    with pytest.raises(SpecError, match="coupled positions, and generate counts"):
        export_model(decoder, task, build_positions("coupled").of(task), place / "no")
    assert not (place / "no").exists() and torch.is_tensor(decoder.embedding.weight)


def test_a_scaling_that_depends_on_the_length_is_not_exported(place):
    """`generate` allows another number of tokens than the run did, so its frequencies would be others."""
    pytest.importorskip("transformers", reason="needs the extra hf")
    from lengthwise.encoding.positions import Consecutive
    from lengthwise.hf.export import export_model
    from lengthwise.model import Decoder, preset
    from lengthwise.task import build_task

    task = build_task("copy:variant=same:longest=4")
    for spec in ("rope:scaling=dynamic:trained=8", "rope:scaling=yarn:trained=64"):
        decoder = Decoder(preset("laptop", vocabulary=len(task.vocabulary)), spec)
        with pytest.raises(SpecError, match="only a scaling with a fixed factor"):
            export_model(decoder, task, Consecutive(), place / "no")
    decoder = Decoder(preset("laptop", vocabulary=len(task.vocabulary)), "rope:scaling=yarn:factor=4:trained=64")
    assert export_model(decoder, task, Consecutive(), place / "fixed")
