"""Any causal model of Hugging Face through the same analyses; tiny ones, with random weights, offline."""

import pytest
import torch

from lengthwise.analysis.attention import Batch, DecoderAttentionSource, attention_statistics
from lengthwise.analysis.divergence import attention_divergences
from lengthwise.analysis.huggingface import HuggingFaceAttentionSource
from lengthwise.model import Decoder, preset
from lengthwise.spec import SpecError

transformers = pytest.importorskip("transformers", reason="needs the extra hf")

IDS = torch.randint(17, (2, 40), generator=torch.Generator().manual_seed(0))


def gpt2(attention: str = "eager"):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=17, n_positions=64, n_embd=32, n_layer=2, n_head=4, attn_implementation=attention
    )
    return transformers.GPT2LMHeadModel(config)


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=17,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        attn_implementation="eager",
    )
    return transformers.LlamaForCausalLM(config)


@pytest.mark.parametrize("make", [gpt2, llama])
def test_a_model_of_hugging_face_is_analysed_as_our_own(make):
    model = make().eval()
    source = HuggingFaceAttentionSource(model)
    assert (source.layers, source.heads) == (2, 4)
    heads, whole = (
        attention_statistics(source, [Batch(IDS)], queries_per_block=16),
        attention_statistics(source, [Batch(IDS)], queries_per_block=64),
    )
    assert heads.future_L.max() == 0
    assert heads.least_L.min() > 1 - 1e-5
    with torch.no_grad():
        truth = model(IDS, output_attentions=True).attentions
    assert torch.allclose(heads.mean_LH("sink")[1], truth[1][..., 0].mean((0, 2)).double(), atol=1e-6)
    assert torch.allclose(heads.mean_LH("entropy"), whole.mean_LH("entropy"), atol=1e-6)
    ours = DecoderAttentionSource(Decoder(preset("laptop", vocabulary=17), "rope"))
    apart, none = attention_divergences([source, ours], [(0, 1), (0, 0)], [Batch(IDS)], queries_per_block=16)
    assert 0 < apart.mean_over_layers("true", "matching") < 0.7
    assert none.mean_over_layers("true", "matching") == 0


def test_attention_that_returns_no_weights_is_refused():
    with pytest.raises(SpecError, match='attn_implementation="eager"'):
        HuggingFaceAttentionSource(gpt2("sdpa"))
    with pytest.raises(SpecError, match="no model of Hugging Face"):
        HuggingFaceAttentionSource(torch.nn.Linear(2, 2))


def test_a_model_that_looks_ahead_is_refused():
    config = transformers.BertConfig(
        vocab_size=17,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        attn_implementation="eager",
    )
    with pytest.raises(SpecError, match="looks ahead"):
        attention_statistics(
            HuggingFaceAttentionSource(transformers.BertForMaskedLM(config)), [Batch(IDS)], queries_per_block=16
        )
