"""The boundary with Hugging Face: what is saved is what is loaded, or it is refused.

Guards are proven: for each, a test takes it away and shows what then goes wrong.
"""

import importlib
import json
import sys

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from lengthwise import __version__
from lengthwise.encoding import ENCODINGS
from lengthwise.encoding.base import Encoding
from lengthwise.model import Decoder, DecoderConfig, preset
from lengthwise.spec import SpecError

pytest.importorskip("transformers", reason="needs the extra hf")

from transformers import PreTrainedModel

from lengthwise import hf
from lengthwise.hf import LengthwiseConfig, LengthwiseForCausalLM
from lengthwise.hf.guards import record_checksums

CONFIG = preset("laptop", vocabulary=32)
IDS = torch.randint(32, (3, 17), generator=torch.Generator().manual_seed(0))

OUTSIDE = '''
import torch
from torch import nn
from lengthwise.encoding.base import Encoding

class Chooser(Encoding):
    """A linear map of embeddings, with weights of its own choice."""
    def __init__(self, geometry):
        super().__init__(geometry)
        self.map = nn.Linear(geometry.width, geometry.width)
        self.rows = nn.Embedding(4, geometry.width)
    def initialize(self, stream):
        nn.init.constant_(self.map.weight, 7.0)
        nn.init.constant_(self.map.bias, 3.0)
        nn.init.constant_(self.rows.weight, 5.0)
    def embed(self, x, positions):
        return x + self.map(x) * 1e-2 + self.rows(positions.long() % 4)

class Sloped(Encoding):
    def by_distance(self, distances):
        return -self.slopes.to(distances)[:, None] * distances

class Keeper(Sloped):
    """ALiBi as most code has it: slopes in a buffer, here `persistent` or not."""
    def __init__(self, geometry, *, persistent: bool = False):
        super().__init__(geometry)
        self.register_buffer("slopes", 2.0 ** -torch.arange(geometry.heads), persistent=persistent)

class Plain(Sloped):
    """Slopes as a plain attribute, which no state_dict knows."""
    def __init__(self, geometry):
        super().__init__(geometry)
        self.slopes = 3.0 ** -(torch.arange(geometry.heads) / 7)

class Frozen(Sloped):
    """Slopes as a parameter that is not to be trained."""
    def __init__(self, geometry):
        super().__init__(geometry)
        self.slopes = nn.Parameter(torch.ones(geometry.heads), requires_grad=False)
    def initialize(self, stream):
        nn.init.constant_(self.slopes, 0.5)
'''


@pytest.fixture
def outside(tmp_path):
    """A file of somebody else's encodings."""
    path = tmp_path / "my_pe.py"
    path.write_text(OUTSIDE)
    return path


@pytest.fixture
def garbage_is_nan():
    """Uninitialised memory is filled with NaN, so that it can be told from leftovers that happen to be right."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


def unit_scale(decoder):
    """Matrices of N(0, 1) / √fan-in, all else N(0, 1): at the usual σ of 0.02 positions hardly move a logit."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            is_table = parameter.ndim == 1 or name.startswith(("embedding.", "encodings."))
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            parameter.copy_(drawn if is_table else drawn / parameter.shape[1] ** 0.5)
    return decoder.eval()


def round_trip(decoder, folder):
    LengthwiseForCausalLM.from_decoder(decoder).save_pretrained(folder)
    return LengthwiseForCausalLM.from_pretrained(folder, trust_remote_code=True)


def assert_same(decoder, loaded, **arguments):
    with torch.no_grad():
        before, after = decoder(IDS, **arguments), loaded.decoder(IDS, **arguments)
    assert before.isfinite().all()
    assert before.dtype == after.dtype
    assert torch.equal(before, after)


# --- the round trip --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_saving_and_loading_changes_no_logit(encoding, tmp_path):
    decoder = unit_scale(Decoder(CONFIG, encoding, seed=5))
    loaded = round_trip(decoder, tmp_path)
    assert_same(decoder, loaded)
    assert torch.equal(loaded(IDS).logits, decoder(IDS))
    assert loaded.decoder.specs == decoder.specs
    assert loaded.decoder.config == decoder.config
    assert loaded.decoder.seed == 5


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if name != "nope"])
def test_at_unit_scale_a_lost_encoding_would_be_seen(encoding):
    decoder = unit_scale(Decoder(CONFIG, encoding))
    other = unit_scale(Decoder(CONFIG, "nope"))
    shared = {name: tensor for name, tensor in decoder.state_dict().items() if not name.startswith("encodings.")}
    other.load_state_dict(shared)
    assert (decoder(IDS) - other(IDS)).abs().max() > 0.1


@pytest.mark.parametrize(
    ("changes", "encoding", "arguments"),
    [
        ({"tied": True, "rescale_head": True, "attention_scale": 1.0, "initial": "t5"}, "t5:buckets=8", {}),
        ({"norm": "layer", "biases": True, "feed_forward": "gelu"}, "sinusoidal:amplitude=2.0", {}),
        ({"norm": "none", "temperature": "log-n:trained=4"}, ["rope:fraction=0.5", "alibi:slopes=text"], {}),
        ({"mask": "prefix"}, {"name": "rope", "theta": 100.0}, {"prefix": [3, 4, 5]}),
        ({"mask": "bidirectional"}, "t5:bidirectional=true", {}),
    ],
)
def test_every_kind_of_decoder_comes_back(changes, encoding, arguments, tmp_path):
    decoder = unit_scale(Decoder(preset("laptop", vocabulary=32, **changes), encoding))
    loaded = round_trip(decoder, tmp_path)
    assert_same(decoder, loaded, **arguments)
    assert loaded.decoder.specs == decoder.specs
    assert loaded.decoder.parameter_count() == decoder.parameter_count()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("encoding", ["t5", "rope"])
def test_the_dtype_comes_back(dtype, encoding, tmp_path):
    decoder = unit_scale(Decoder(CONFIG, encoding)).to(dtype)
    loaded = round_trip(decoder, tmp_path)
    assert {tensor.dtype for tensor in loaded.state_dict().values()} == {dtype}
    assert_same(decoder, loaded)
    assert torch.get_default_dtype() == torch.float32


def test_a_folder_that_cannot_be_made_is_named():
    with pytest.raises(SpecError, match="cannot write /dev/null/model"):
        LengthwiseForCausalLM.from_decoder(Decoder(CONFIG, "nope")).save_pretrained("/dev/null/model")


def test_another_dtype_can_be_asked_for(tmp_path):
    decoder = unit_scale(Decoder(CONFIG, "t5"))
    LengthwiseForCausalLM.from_decoder(decoder).save_pretrained(tmp_path)
    assert_same(decoder.double(), LengthwiseForCausalLM.from_pretrained(tmp_path, dtype=torch.float64))


def test_a_model_of_two_dtypes_is_refused(tmp_path, monkeypatch):
    model = LengthwiseForCausalLM.from_decoder(Decoder(CONFIG, "t5").bfloat16())
    model.decoder.norm.float()
    with pytest.raises(SpecError, match=r"norm.weight is torch.float32, but the embedding is torch.bfloat16"):
        model.save_pretrained(tmp_path)
    monkeypatch.setattr(hf, "refuse_mixed_dtypes", lambda decoder: None)
    model.save_pretrained(tmp_path)
    assert LengthwiseForCausalLM.from_pretrained(tmp_path).decoder.norm.weight.dtype == torch.bfloat16  # lost


def test_saving_again_replaces_what_was_there(tmp_path):
    decoder = Decoder(CONFIG, "learned:limit=32")
    model = LengthwiseForCausalLM.from_decoder(decoder)
    model.save_pretrained(tmp_path)
    decoder.initialize(9)
    model.save_pretrained(tmp_path)
    loaded = LengthwiseForCausalLM.from_pretrained(tmp_path)
    assert_same(decoder, loaded)
    assert loaded.config.seed == loaded.decoder.seed == 9


# --- trap a: buffers -------------------------------------------------------------------------------------------------


def test_a_buffer_that_would_be_lost_is_refused_at_construction(outside):
    with pytest.raises(SpecError, match=r"encodings.0 \(Keeper\) keeps 'slopes' .* compute constants in the hook"):
        LengthwiseForCausalLM.from_decoder(Decoder(CONFIG, f"{outside}:Keeper"))


def test_a_buffer_that_would_be_lost_is_refused_when_saving(tmp_path):
    model = LengthwiseForCausalLM.from_decoder(Decoder(CONFIG, "rope"))
    model.decoder.encodings[0].register_buffer("cosines", torch.ones(3), persistent=False)
    with pytest.raises(SpecError, match=r"encodings.0 \(Rope\) keeps 'cosines'"):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("garbage_is_nan")
def test_a_buffer_that_would_be_lost_is_refused_when_loading(outside, tmp_path, monkeypatch):
    decoder = Decoder(CONFIG, f"{outside}:Keeper").eval()
    with monkeypatch.context() as without:
        without.setattr(hf, "refuse_lost_buffers", lambda decoder: None)
        loaded = round_trip(decoder, tmp_path / "model")
    # Without the guard: nothing is said, and the slopes are uninitialised memory.
    assert decoder(IDS).isfinite().all()
    assert loaded.decoder.encodings[0].slopes.isnan().all()
    assert loaded(IDS).logits.isnan().any()
    with pytest.raises(SpecError, match="keeps 'slopes'"):
        LengthwiseForCausalLM.from_pretrained(tmp_path / "model", trust_remote_code=True)


@pytest.mark.usefixtures("garbage_is_nan")
def test_a_persistent_buffer_comes_back(outside, tmp_path):
    decoder = unit_scale(Decoder(CONFIG, f"{outside}:Keeper:persistent=true"))
    assert_same(decoder, round_trip(decoder, tmp_path / "model"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_plain_tensor_of_an_encoding_comes_back(dtype, outside, tmp_path, monkeypatch):
    decoder = unit_scale(Decoder(CONFIG, f"{outside}:Plain")).to(dtype)
    loaded = round_trip(decoder, tmp_path / "model")
    assert torch.equal(loaded.decoder.encodings[0].slopes, decoder.encodings[0].slopes)
    assert_same(decoder, loaded)
    monkeypatch.setattr(hf, "_built", lambda config, specs, seed: Decoder(config, specs, seed=seed))
    slopes = (
        LengthwiseForCausalLM.from_pretrained(tmp_path / "model", trust_remote_code=True).decoder.encodings[0].slopes
    )
    assert slopes.is_meta  # lost
    assert slopes.dtype == dtype  # and would have been rounded


# --- trap b: initialisation ------------------------------------------------------------------------------------------


def chosen(decoder):
    part = decoder.encodings[0]
    weights = {"map.weight": 7.0, "map.bias": 3.0, "rows.weight": 5.0}
    return all(bool((part.get_parameter(name) == value).all()) for name, value in weights.items())


def test_an_encoding_keeps_the_weights_it_chose(outside, tmp_path):
    decoder = Decoder(CONFIG, f"{outside}:Chooser").eval()
    held = {name: tensor.clone() for name, tensor in decoder.state_dict().items()}
    model = LengthwiseForCausalLM.from_decoder(decoder)
    assert chosen(model.decoder)
    assert all(torch.equal(tensor, held[name]) for name, tensor in model.decoder.state_dict().items())
    model.save_pretrained(tmp_path / "model")
    loaded = LengthwiseForCausalLM.from_pretrained(tmp_path / "model", trust_remote_code=True)
    assert chosen(loaded.decoder)
    assert_same(decoder, loaded)


def test_a_model_made_from_a_config_initialises_itself(outside):
    decoder = Decoder(CONFIG, f"{outside}:Chooser", seed=4)
    model = LengthwiseForCausalLM(LengthwiseConfig.of(decoder), trust_remote_code=True)
    assert chosen(model.decoder)
    for name, tensor in model.decoder.state_dict().items():
        assert torch.equal(tensor, decoder.state_dict()[name]), name


def test_without_its_guard_hugging_face_overwrites_them(outside, monkeypatch):
    monkeypatch.delattr(LengthwiseForCausalLM, "_init_weights")
    decoder = Decoder(CONFIG, f"{outside}:Chooser")
    assert chosen(decoder)
    LengthwiseForCausalLM.from_decoder(decoder)
    assert not chosen(decoder)
    assert decoder.encodings[0].map.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_a_frozen_parameter_stays_frozen(outside, tmp_path, monkeypatch):
    decoder = unit_scale(Decoder(CONFIG, f"{outside}:Frozen"))
    loaded = round_trip(decoder, tmp_path / "model")
    assert_same(decoder, loaded)
    assert loaded.decoder.parameter_count() == decoder.parameter_count()
    assert [name for name, tensor in loaded.named_parameters() if not tensor.requires_grad] == [
        "decoder.encodings.0.slopes"
    ]
    monkeypatch.setattr(hf, "_refuse_foreign_code", lambda *_: None)
    unguarded = PreTrainedModel.from_pretrained.__func__(LengthwiseForCausalLM, tmp_path / "model")
    assert unguarded.decoder.encodings[0].slopes.requires_grad  # thawed


# --- checkpoints that do not fit -------------------------------------------------------------------------------------


def tamper(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    record_checksums(folder)


@pytest.mark.usefixtures("garbage_is_nan")
@pytest.mark.parametrize(
    "name", ["embedding.weight", "norm.weight", "layers.1.attention.out.weight", "encodings.0.table"]
)
def test_a_missing_tensor_is_an_error(name, tmp_path, monkeypatch):
    LengthwiseForCausalLM.from_decoder(Decoder(CONFIG, "t5")).save_pretrained(tmp_path)
    tamper(tmp_path, lambda weights: weights.pop(f"decoder.{name}"))
    with pytest.raises(SpecError, match=f"decoder.{name} is missing"):
        LengthwiseForCausalLM.from_pretrained(tmp_path)
    monkeypatch.setattr(hf, "refuse_gaps", lambda where, found: None)
    loaded = LengthwiseForCausalLM.from_pretrained(tmp_path)
    assert loaded.decoder.get_parameter(name).isnan().all()  # uninitialised memory


def test_a_tensor_too_many_is_an_error(tmp_path):
    LengthwiseForCausalLM.from_decoder(Decoder(CONFIG, "rope")).save_pretrained(tmp_path)
    tamper(tmp_path, lambda weights: weights.update({"decoder.encodings.0.table": torch.ones(3)}))
    with pytest.raises(SpecError, match=r"decoder.encodings.0.table belongs to no part of the model"):
        LengthwiseForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("ignore", [False, True])
def test_a_tensor_of_another_shape_is_an_error(ignore, tmp_path):
    LengthwiseForCausalLM.from_decoder(Decoder(CONFIG, "rope")).save_pretrained(tmp_path)
    tamper(tmp_path, lambda weights: weights.update({"decoder.norm.weight": torch.ones(3)}))
    with pytest.raises(SpecError, match=r"decoder.norm.weight is \(3,\), not \(64,\)"):
        LengthwiseForCausalLM.from_pretrained(tmp_path, ignore_mismatched_sizes=ignore)


def test_a_config_of_another_version_is_an_error_that_names_it(tmp_path):
    LengthwiseForCausalLM.from_decoder(Decoder(CONFIG, "rope")).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    assert config["lengthwise_version"] == __version__
    assert config["encodings"] == [{"name": "rope"}] * 2
    config["decoder_config"]["experts"] = 8
    path.write_text(json.dumps({**config, "lengthwise_version": "99.0"}))
    record_checksums(tmp_path)
    with pytest.raises(SpecError, match=r"decoder_config.experts .*written by lengthwise 99.0"):
        LengthwiseForCausalLM.from_pretrained(tmp_path)


# --- encodings from outside ------------------------------------------------------------------------------------------


def test_an_encoding_whose_file_is_gone_is_an_error(outside, tmp_path):
    model = LengthwiseForCausalLM.from_decoder(Decoder(CONFIG, f"{outside}:Plain"))
    model.save_pretrained(tmp_path / "model")
    outside.unlink()
    with pytest.raises(SpecError, match="there is no file"):
        LengthwiseForCausalLM.from_pretrained(tmp_path / "model", trust_remote_code=True)


def test_an_encoding_whose_file_was_edited_since_is_not_saved(outside, tmp_path):
    model = LengthwiseForCausalLM.from_decoder(Decoder(CONFIG, f"{outside}:Plain"))
    outside.write_text(OUTSIDE.replace("3.0 **", "2.0 **"))
    with pytest.raises(SpecError, match="would be another one"):
        model.save_pretrained(tmp_path / "model")


def test_an_encoding_whose_file_was_edited_since_is_not_loaded(outside, tmp_path):
    decoder = Decoder(CONFIG, f"{outside}:Plain")
    LengthwiseForCausalLM.from_decoder(decoder).save_pretrained(tmp_path / "saved")
    LengthwiseForCausalLM.from_pretrained(tmp_path / "saved", trust_remote_code=True)
    path = tmp_path / "saved" / "config.json"
    outside.write_text(outside.read_text().replace("3.0 **", "2.0 **"))
    with pytest.raises(SpecError, match="has changed since this model was saved"):
        LengthwiseForCausalLM.from_pretrained(tmp_path / "saved", trust_remote_code=True)
    # Without the guard (no hash in the config to compare with) it loads, as another function.
    config = json.loads(path.read_text())
    config["sources"] = hf._sources(Decoder(CONFIG, f"{outside}:Plain"))
    path.write_text(json.dumps(config))
    record_checksums(tmp_path / "saved")
    loaded = LengthwiseForCausalLM.from_pretrained(tmp_path / "saved", trust_remote_code=True)
    assert not torch.equal(loaded.eval()(IDS).logits, decoder.eval()(IDS))


@pytest.mark.parametrize("part", [DecoderConfig, Encoding])
def test_a_model_of_another_version_of_the_numbers_is_not_loaded(part, tmp_path, monkeypatch):
    LengthwiseForCausalLM.from_decoder(Decoder(CONFIG, "nope")).save_pretrained(tmp_path)
    monkeypatch.setattr(part, "version", part.version + 1)
    with pytest.raises(SpecError, match="compute something else"):
        LengthwiseForCausalLM.from_pretrained(tmp_path)


def test_an_encoding_that_has_no_name_elsewhere_is_not_saved(tmp_path):
    class Local(Encoding):
        pass

    model = LengthwiseForCausalLM.from_decoder(Decoder(CONFIG, Local))
    with pytest.raises(SpecError, match="Local"):
        model.save_pretrained(tmp_path)
    Local.__module__ = "__main__"
    with pytest.raises(SpecError, match="would not be found again"):
        model.save_pretrained(tmp_path)


# --- the forward pass ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_padding_changes_nothing_for_the_tokens_beside_it(encoding, side):
    model = LengthwiseForCausalLM.from_decoder(unit_scale(Decoder(CONFIG, encoding)).double())
    lengths = [17, 9, 1]
    mask = torch.stack([(torch.arange(17) < length).long() for length in lengths])
    mask = mask.flip(1) if side == "left" else mask
    for given in (mask, mask.bool()):
        logits = model(IDS, attention_mask=given).logits
        for row in range(3):
            real = given[row].bool()
            assert torch.allclose(logits[row, real], model(IDS[row, real][None]).logits[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[1, 0, 1]], "not 1 0 1"),
        ([[0, 1, 0]], "not 1 0 1"),
        ([[1, 1, 0], [0, 1, 1]], "same side of every row"),
        ([[2, 1, 1]], "1 for a token, 0 for padding"),
        ([[0.0, 0.0, float("-inf")]], "1 for a token, 0 for padding"),
        ([[[[1, 0, 0], [1, 1, 0], [1, 1, 1]]]], "shape of input_ids"),
        ([[1, 1, 1, 0]], "shape of input_ids"),
    ],
)
def test_a_mask_that_is_not_padding_is_refused(mask, message):
    model = LengthwiseForCausalLM.from_decoder(Decoder(CONFIG, "rope"))
    with pytest.raises(SpecError, match=message):
        model(IDS[: len(mask), :3], attention_mask=torch.tensor(mask))


def test_positions_are_used_as_given():
    model = LengthwiseForCausalLM.from_decoder(unit_scale(Decoder(CONFIG, "learned:limit=64")))
    positions = torch.arange(17)[None] * 3
    logits = model(IDS, position_ids=positions).logits
    assert torch.equal(logits, model.decoder(IDS, positions_BT=positions))
    assert not torch.allclose(logits, model(IDS).logits)
    with pytest.raises(SpecError, match="position 64 is past the last"):
        model(IDS, position_ids=positions + 16)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_loss_is_that_of_the_next_label_without_ignored_ones(dtype):
    model = LengthwiseForCausalLM.from_decoder(unit_scale(Decoder(CONFIG, "alibi")).to(dtype))
    labels = IDS.clone()
    labels[:, :6] = -100
    output = model(IDS, labels=labels)
    by_hand = [
        F.cross_entropy(output.logits[row, t].to(torch.promote_types(dtype, torch.float32)), IDS[row, t + 1])
        for row in range(3)
        for t in range(5, 16)
    ]
    assert output.loss.dtype == by_hand[0].dtype
    assert torch.allclose(output.loss, torch.stack(by_hand).mean())
    output.loss.backward()
    assert model.decoder.embedding.weight.grad is not None


def test_a_model_that_sees_the_next_token_has_no_loss():
    model = LengthwiseForCausalLM.from_decoder(Decoder(preset("laptop", vocabulary=32, mask="bidirectional")))
    with pytest.raises(SpecError, match="bidirectional"):
        model(IDS, labels=IDS)


def test_what_the_model_does_not_return_is_refused():
    model = LengthwiseForCausalLM.from_decoder(Decoder(CONFIG, "rope"))
    assert torch.equal(model(IDS, return_dict=False)[0], model(IDS).logits)
    with pytest.raises(TypeError, match="output_hidden_states"):
        model(IDS, output_hidden_states=True)
    model.config.output_hidden_states = True
    with pytest.raises(SpecError, match="taps"):
        model(IDS)


# --- the rest --------------------------------------------------------------------------------------------------------


def test_the_model_holds_the_decoder_itself():
    decoder = Decoder(CONFIG, "rope").eval()
    model = LengthwiseForCausalLM.from_decoder(decoder)
    assert model.decoder is decoder
    assert not model.training
    assert not decoder.training
    assert (model.config.vocab_size, model.config.hidden_size) == (32, 64)
    assert (model.config.num_hidden_layers, model.config.num_attention_heads) == (2, 4)
    assert model.config.get_text_config(decoder=True) is model.config


def test_a_config_of_another_decoder_is_refused():
    config = LengthwiseConfig.of(Decoder(CONFIG, "rope"))
    with pytest.raises(SpecError, match="another decoder"):
        LengthwiseForCausalLM(config, decoder=Decoder(CONFIG, "alibi"))


def test_an_option_nobody_knows_is_refused(tmp_path):
    LengthwiseForCausalLM.from_decoder(Decoder(CONFIG, "rope")).save_pretrained(tmp_path)
    with pytest.raises(TypeError, match="tehta"):
        LengthwiseForCausalLM.from_pretrained(tmp_path, tehta=500_000)


def test_without_transformers_the_import_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "lengthwise.hf")
    with pytest.raises(SpecError, match=r"pip install 'lengthwise\[hf\]'"):
        importlib.import_module("lengthwise.hf")
