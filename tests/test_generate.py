"""`generate` of Hugging Face: what our own greedy decoding says, token by token, for every encoding."""

import pytest
import torch

from lengthwise.encoding import ENCODINGS
from lengthwise.encoding.base import Encoding
from lengthwise.model import Decoder, preset
from lengthwise.model.decode import greedy
from lengthwise.spec import SpecError

pytest.importorskip("transformers", reason="needs the extra hf")

from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel

from lengthwise import hf
from lengthwise.hf import LengthwiseConfig, LengthwiseForCausalLM, generation

LENGTHS, NEW = [7, 4, 1], 9
IDS = torch.randint(1, 32, (3, 7), generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[0] * (7 - length) + [1] * length for length in LENGTHS])


class Stretched(Encoding):
    """Reads the budget: queries and keys of rows that may get 10, 13 and 16 tokens are 1, 4 and 2 times as large."""

    relative = True

    def prepare(self, query_positions_BQ, key_positions_BK, budget_B):
        return budget_B

    def rotate(self, q_BHQE, k_BHKE, state):
        by = 1 + (state % 5).to(q_BHQE.dtype)[:, None, None, None]
        return q_BHQE * by, k_BHKE * by


def made(encoding, **changes):
    """A model that says something: at the usual σ every answer is one token again and again."""
    decoder = Decoder(preset("laptop", vocabulary=32, sigma=0.3, **changes), encoding, seed=3).eval()
    return LengthwiseForCausalLM.from_decoder(decoder)


def said(model, ids=IDS, mask=MASK, tokens=NEW, **more):
    out = model.generate(ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, **more)
    assert torch.equal(out[:, : ids.shape[1]], ids)
    return out[:, ids.shape[1] :]


@pytest.mark.parametrize("encoding", [*ENCODINGS, Stretched])
def test_generate_says_what_greedy_says(encoding):
    model = made(encoding)
    wanted = greedy(model.decoder, IDS, NEW, lengths=LENGTHS)
    assert len(set(wanted.flatten().tolist())) > 5
    assert torch.equal(said(model), wanted)
    assert torch.equal(said(model, use_cache=False), wanted)
    assert torch.equal(said(model, prefill_chunk_size=3), wanted)
    for row, length in enumerate(LENGTHS):  # alone, without padding and without a mask
        alone = said(model, IDS[row : row + 1, -length:], None)
        assert torch.equal(alone[0], wanted[row])


def test_a_row_s_budget_is_its_own():
    model = made(Stretched)
    wanted = greedy(model.decoder, IDS, NEW, lengths=LENGTHS)
    more = said(model, budget=20)
    assert not torch.equal(more, wanted)
    assert torch.equal(more, said(model, budget=20, use_cache=False))
    assert torch.equal(more[:, :3], said(model, tokens=3, budget=20))  # the budget, not the tokens asked for
    assert not torch.equal(said(model, tokens=3), wanted[:, :3])


def test_without_its_hook_the_budget_would_be_lost(monkeypatch):
    def unbudgeted(self, generation_config, model_kwargs, mode, batch_size, longest):
        model_kwargs.pop("budget", None)

    model = made(Stretched)
    wanted = greedy(model.decoder, IDS, NEW, lengths=LENGTHS)
    monkeypatch.setattr(generation.DecoderGenerationMixin, "_prepare_cache_for_generation", unbudgeted)
    assert not torch.equal(said(model, use_cache=False), wanted)


def test_a_prefix_model_generates():
    model = made("rope", mask="prefix")
    wanted = []
    with torch.no_grad():
        for row, length in enumerate(LENGTHS):
            ids = IDS[row : row + 1, -length:]
            for _ in range(NEW):
                ids = torch.cat([ids, model.decoder(ids, prefix=[length])[:, -1:].argmax(-1)], 1)
            wanted.append(ids[0, length:])
    assert torch.equal(said(model, prefix=LENGTHS), torch.stack(wanted))
    assert torch.equal(said(model, prefix=LENGTHS, use_cache=False), torch.stack(wanted))


def test_positions_that_are_given_are_used():
    model = made("learned:limit=64")
    positions = torch.arange(7)[None] * 3
    ids, mask = IDS[:1], MASK[:1]
    with torch.no_grad():
        for step in range(NEW):
            places = torch.cat([positions, 18 + torch.arange(1, step + 1)[None]], 1)
            ids = torch.cat([ids, model.decoder(ids, positions_BT=places)[:, -1:].argmax(-1)], 1)
    for cached in (True, False):
        assert torch.equal(said(model, IDS[:1], mask, position_ids=positions, use_cache=cached), ids[:, 7:])


def test_sampling_several_and_stopping_work():
    model = made("t5")
    torch.manual_seed(0)
    out = model.generate(IDS, attention_mask=MASK, max_new_tokens=4, do_sample=True, num_return_sequences=2)
    assert out.shape == (6, 11)
    wanted = greedy(model.decoder, IDS, NEW, lengths=LENGTHS)
    end = int(wanted[0, 2])
    stopped = said(model, eos_token_id=end, pad_token_id=0)
    for row in range(3):
        words = wanted[row].tolist()
        until = words.index(end) + 1 if end in words else NEW
        assert stopped[row, :until].tolist() == words[:until]
        assert not stopped[row, until:].any()


def test_a_cache_that_was_kept_goes_on():
    model = made("alibi")
    wanted = greedy(model.decoder, IDS, NEW, lengths=LENGTHS)
    held = model.cache(torch.tensor(LENGTHS) + NEW)
    first = model.generate(IDS, attention_mask=MASK, max_new_tokens=4, do_sample=False, past_key_values=held)
    assert held.get_seq_length() == 10  # the last token was said, not read
    mask = torch.cat([MASK, torch.ones(3, 4, dtype=torch.long)], 1)
    rest = model.generate(first, attention_mask=mask, max_new_tokens=5, do_sample=False, past_key_values=held)
    assert torch.equal(rest[:, 7:], wanted)
    with torch.no_grad(), pytest.raises(SpecError, match="tokens were cached"):
        model(IDS[:, :1], attention_mask=torch.ones(3, 16, dtype=torch.long), past_key_values=held)
    with torch.no_grad(), pytest.raises(SpecError, match=r"must be \(3, 16\)"):
        model(IDS[:, :1], attention_mask=torch.ones(3, 1, dtype=torch.long), past_key_values=held)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_beams": 2}, "cannot do beam search here; use greedy search"),
        ({"num_beams": 2, "do_sample": True}, "cannot do beam sample"),
        ({"attention_mask": MASK.flip(1)}, "pad prompts on the left"),
        ({"attention_mask": None, "pad_token_id": int(IDS[0, 0])}, "hold the id of padding, .* give attention_mask"),
        ({"cache_implementation": "static"}, "cache_implementation='static' is not ours"),
        ({"past_key_values": DynamicCache()}, r"made by model.cache\(budget\), not DynamicCache"),
        ({"output_attentions": True, "return_dict_in_generate": True}, "read with taps"),
        ({"budget": 8}, "do not fit the cache's budget"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_what_generate_cannot_do_is_refused(arguments, message):
    asked = {"attention_mask": MASK, "max_new_tokens": 3, "do_sample": False, **arguments}
    with pytest.raises(ValueError, match=message):
        made("rope").generate(IDS, **asked)


def test_a_bidirectional_model_does_not_generate():
    with pytest.raises(SpecError, match="bidirectional model cannot generate"):
        said(made("nope", mask="bidirectional"))


def test_the_end_of_a_table_is_an_error():
    with pytest.raises(SpecError, match="position 12 is past the last one learned has, 11"):
        said(made("learned:limit=12"))
    assert said(made("learned:limit=15")).shape == (3, 9)


def test_a_cache_without_a_budget_is_refused():
    model = made("rope")
    with torch.no_grad(), pytest.raises(SpecError, match=r"past_key_values=model.cache\(budget\)"):
        model(IDS, use_cache=True)
    with pytest.raises(SpecError, match="not DynamicCache"):
        model(IDS, past_key_values=DynamicCache())


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["t5", "rope:fraction=0.5"])
def test_the_auto_classes_know_the_model(encoding, tmp_path):
    model = made(encoding)
    model.save_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), LengthwiseConfig)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(loaded, LengthwiseForCausalLM)
    assert torch.equal(said(loaded.eval()), said(model))


def test_a_folder_that_is_not_there_is_told_without_asking_the_hub(tmp_path, monkeypatch):
    def asks(cls, where, **named):
        raise ConnectionError(f"the hub was asked for {where}")

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", classmethod(asks))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "file").write_text("")
    for where in (tmp_path / "no", str(tmp_path / "no"), "no", "./no", "runs/no", "~/no/such/folder", "a/b/c", "no/"):
        with pytest.raises(SpecError, match="does not exist: give the folder that save_pretrained wrote"):
            LengthwiseForCausalLM.from_pretrained(where)
    with pytest.raises(SpecError, match="is not a folder"):
        LengthwiseForCausalLM.from_pretrained("file")
    with pytest.raises(ConnectionError, match="somebody/model"):
        LengthwiseForCausalLM.from_pretrained("somebody/model")
    monkeypatch.setattr(hf, "refuse_nowhere", lambda where: None)
    with pytest.raises(ConnectionError):
        LengthwiseForCausalLM.from_pretrained("no")
