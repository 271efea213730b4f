"""The configuration of a decoder: typed, frozen fields, and the presets that fill them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from lengthwise.normaliser import NORMALISERS
from lengthwise.spec import Spec, SpecError, did_you_mean, require_known_fields, validated

if TYPE_CHECKING:
    from lengthwise.encoding.base import Geometry

TEMPERATURES = {
    "constant": "lengthwise.model.temperature:Constant",
    "log-n": "lengthwise.model.temperature:LogN",
    "yarn": "lengthwise.model.temperature:Yarn",
    "llama4": "lengthwise.model.temperature:Llama4",
    "ministral": "lengthwise.model.temperature:Ministral",
    "beam": "lengthwise.model.temperature:Beam",
    "inkling": "lengthwise.model.temperature:Inkling",
    "ssmax": "lengthwise.model.temperature:SSMax",
    "asentmax": "lengthwise.model.temperature:ASEntmax",
}
"""The attention temperatures; the classes are imported when a model is built."""

Probability = Field(ge=0, lt=1)


def _unbracketed(value: object) -> object:
    """`laptop:temperature=[log-n:trained=16]` gives a list of one name."""
    return value[0] if isinstance(value, tuple | list) and len(value) == 1 else value


Nested = Annotated[str, BeforeValidator(_unbracketed)]
"""A name with options of its own; inside another spec it is written in brackets."""


class DecoderConfig(BaseModel):
    """Every option of the decoder except its encoding; a preset only fills in these fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: ClassVar[int] = 1
    """Raised when the decoder's numbers change; part of a run's identity."""
    also_called: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("d_model", "hidden_size", "n_embd", "dim"), "width"),
        **dict.fromkeys(("n_layers", "num_layers", "n_layer", "num_hidden_layers", "depth"), "layers"),
        **dict.fromkeys(("n_heads", "num_heads", "n_head", "num_attention_heads"), "heads"),
        **dict.fromkeys(("head_dim", "d_head", "d_kv"), "head_width"),
        **dict.fromkeys(("d_ff", "intermediate_size", "ffn_dim", "mlp_width"), "feed_forward_width"),
        **dict.fromkeys(("vocab_size", "vocab"), "vocabulary"),
    }
    """Names that other libraries have for these options."""
    machinery: ClassVar[frozenset[str]] = frozenset({"attention"})
    """Fields that decide how the same numbers are computed; like the device, they are not part of a run's identity."""

    vocabulary: int = Field(gt=0, le=10_000_000)
    width: int = Field(gt=0, le=65_536)
    layers: int = Field(gt=0, le=1_024)
    heads: int = Field(gt=0, le=1_024)
    head_width: int = Field(gt=0, le=65_536)
    feed_forward: Literal["relu", "gelu", "swiglu"]
    feed_forward_width: int = Field(gt=0, le=1_000_000)
    norm: Literal["rms", "layer", "none"] = "rms"
    norm_epsilon: float = 1e-6
    attention_scale: float | None = Field(default=None, gt=0)
    """The factor on q · k; none means 1/√(head width). Never applied to a bias."""
    normaliser: Nested = "softmax"
    """How scores become weights: `softmax`, `sink`, `off-by-one`, `entmax:alpha=1.5` or `stick_breaking`."""
    temperature: Nested = "constant"
    """A further factor on q · k: `constant:factor=1.2`, or `log-n:trained=16` by the number of tokens so far."""
    mask: Literal["causal", "bidirectional", "prefix"] = "causal"
    attention: Literal["auto", "dense", "flex"] = "auto"
    """The attention path: the fastest one that applies, explicit scores, or FlexAttention."""
    biases: bool = False
    tied: bool = False
    """The head is the embedding, transposed."""
    rescale_head: bool = False
    """The state is multiplied by width^−½ before the head, as T5 does."""
    dropout: float = Probability
    attention_dropout: float = Probability
    initial: Literal["normal", "t5"] = "normal"
    sigma: float | None = Field(default=None, ge=0)
    """Standard deviation of every matrix under `initial="normal"`; none means 0.02 √(768 / width)."""

    def outside_parts(self) -> list[tuple[str, dict[str, str], Spec]]:
        """The normaliser and the temperature if they are from outside the package: (kind, table of ours, spec) each."""
        named = [
            ("normaliser", NORMALISERS, Spec.of(self.normaliser)),
            ("temperature", TEMPERATURES, Spec.of(self.temperature)),
        ]
        return [(kind, table, spec) for kind, table, spec in named if spec.name not in table]

    @property
    def scale(self) -> float:
        """The factor on q · k."""
        return self.head_width**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def initial_sigma(self) -> float:
        """σ such that width · σ² = 0.31 at any width: below that, a small NoPE model starts without positions."""
        return 0.02 * (768 / self.width) ** 0.5 if self.sigma is None else self.sigma

    @property
    def geometry(self) -> Geometry:
        """What an encoding may know about this model."""
        from lengthwise.encoding.base import Geometry

        if self.initial == "t5":
            embedding_std, bias_std = 1.0, self.width**-0.5
        else:
            embedding_std = bias_std = self.initial_sigma
        return Geometry(
            width=self.width,
            heads=self.heads,
            head_width=self.head_width,
            embedding_std=embedding_std,
            bias_std=bias_std,
        )


def _gpt(layers: int, width: int, heads: int) -> dict[str, object]:
    return {
        "width": width,
        "layers": layers,
        "heads": heads,
        "head_width": width // heads,
        "feed_forward": "gelu",
        "feed_forward_width": 4 * width,
        "norm": "layer",
        "biases": True,
        "tied": True,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "sigma": 0.02,
    }


PRESETS: dict[str, dict[str, object]] = {
    # The decoder of Kazemnejad et al. 2023: T5-base's, without its cross-attention.
    "paper": {
        "width": 768,
        "layers": 12,
        "heads": 12,
        "head_width": 64,
        "feed_forward": "relu",
        "feed_forward_width": 3072,
        "norm": "rms",
        "attention_scale": 1.0,
        "tied": True,
        "rescale_head": True,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "initial": "t5",
    },
    # A current architecture of the same size.
    "modern": {
        "width": 768,
        "layers": 12,
        "heads": 12,
        "head_width": 64,
        "feed_forward": "swiglu",
        "feed_forward_width": 2048,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    },
    # The sizes of Haviv et al. 2022, which are those of GPT-3.
    "125M": _gpt(12, 768, 12),
    "350M": _gpt(24, 1024, 16),
    "760M": _gpt(24, 1536, 16),
    "1.3B": _gpt(24, 2048, 32),
    # The model of Kazemnejad et al. 2023, appendix F, for source code: 1,308,673,024 parameters with 49,152 tokens.
    "1.3B-code": {
        "width": 1024,
        "layers": 24,
        "heads": 32,
        "head_width": 128,
        "feed_forward": "relu",
        "feed_forward_width": 16_384,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    },
    # A language model that one core trains in about ten minutes.
    "nano": {
        "width": 128,
        "layers": 4,
        "heads": 4,
        "head_width": 32,
        "feed_forward": "swiglu",
        "feed_forward_width": 384,
        "tied": True,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    },
    # A small `modern` that a CPU trains in a minute; 3 layers where two lookups must be chained (copy, reverse).
    "laptop": {
        "width": 64,
        "layers": 2,
        "heads": 4,
        "head_width": 16,
        "feed_forward": "swiglu",
        "feed_forward_width": 192,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    },
}


def preset(spec: str | Mapping[str, object] | Spec, **changes: object) -> DecoderConfig:
    """The config of a preset with changes.

    >>> preset("laptop:layers=3", vocabulary=32).layers
    3
    """
    spec = Spec.of(spec)
    if spec.name not in PRESETS:
        raise SpecError(f"unknown preset {spec.name!r}.{did_you_mean(spec.name, PRESETS)}")
    fields = {**PRESETS[spec.name], **dict(spec.options), **changes}
    require_known_fields("preset", spec.name, DecoderConfig, fields)
    if "vocabulary" not in fields:
        raise SpecError(f"preset {spec.name!r} needs 'vocabulary'; write {spec.name}:vocabulary=...")
    return validated("preset", spec.name, DecoderConfig, fields)
