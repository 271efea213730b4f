"""The decoder: embeddings, layers, head. It uses its encodings only through their hooks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lengthwise.device import is_host, without_autocast, without_waiting
from lengthwise.encoding import build_encoding
from lengthwise.encoding.base import Encoding, normal_, option_taken_hint
from lengthwise.model.attention import Attention, AttentionContext, AttentionMask
from lengthwise.model.cache import Cache
from lengthwise.model.config import DecoderConfig
from lengthwise.model.flex import check as check_flex
from lengthwise.model.layer import Layer
from lengthwise.model.layout import TokenLayout, lay_out
from lengthwise.model.norm import Norm
from lengthwise.model.per_layer import Named, per_layer
from lengthwise.model.taps import Tap, Taps
from lengthwise.model.temperature import AttentionTemperature
from lengthwise.normaliser.base import Normaliser
from lengthwise.spec import Spec, SpecError, digest, format_value, options


class Decoder(nn.Module):
    """A decoder-only Transformer with one encoding for all layers, or a list with one entry per layer.

    `Decoder(preset("laptop", vocabulary=32), "rope", seed=0)(ids_BT)` gives logits (B, T, V). Positions, padding,
    documents and prompts are arguments of the call, mostly given as lengths. The model never samples positions, and
    counts them only if none are given.
    """

    def __init__(self, config: DecoderConfig, encoding: Named | Sequence[Named] = "nope", *, seed: int = 0) -> None:
        super().__init__()
        if not isinstance(config, DecoderConfig):
            raise SpecError(f'the first argument is a config, e.g. preset("laptop", vocabulary=32), not {config!r}')
        self.config = config
        self.seed = seed
        self.recompute = False
        """Gradient checkpointing: keep no activations inside a layer, compute them again in the backward pass."""
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.layers))
        self.norm = Norm(config.norm, config.width, config.norm_epsilon, config.biases)
        self.head = None if config.tied else nn.Linear(config.width, config.vocabulary, bias=config.biases)
        self.specs, classes = per_layer(encoding, config.layers)
        self.encodings = nn.ModuleList()
        self.which: list[int] = []
        """For each layer, the index of its encoding in `encodings`."""
        self._build_encodings(classes)
        self._check_attention()
        for attention, which in zip(self._attentions(), self.which, strict=True):
            if not attention.temperature.acts(self._encodings()[which]):
                attention.temperature.requires_grad_(False)  # DDP waits for the gradient of every parameter
        self.backend = config.attention
        self.initialize(seed)

    def _build_encodings(self, classes: Mapping[Spec, type[Encoding]]) -> None:
        held: dict[Spec, int] = {}
        for spec in self.specs:
            if spec in held:
                self.which.append(held[spec])
                continue
            geometry = self.config.geometry
            built = classes[spec](geometry) if spec in classes else build_encoding(spec, geometry)
            if built.overrides("embed"):
                if len(set(self.specs)) > 1:
                    raise SpecError(f"'{spec}' acts on the embeddings, once for all layers; it cannot be for only some")
                if not built.shared:
                    raise SpecError(f"'{spec}' acts on the embeddings, so it must claim shared = True")
            if built.shared:
                held[spec] = len(self.encodings)
            self.which.append(len(self.encodings))
            self.encodings.append(built)

    def _check_attention(self) -> None:
        """Refuse a temperature that would act nowhere, and two ways to compute weights."""
        first = self._attentions()[0]
        if not any(first.temperature.acts(part) for part in self._encodings()):
            where = {"nope": "layers without an encoding (nope)", "global": "layers without a window"}
            name = where.get(first.temperature.layers, "heads without positions (nope, half of nape)")
            option = "layers" if first.temperature.layers != "all" else "heads"
            raise SpecError(
                f"temperature '{self.config.temperature}' is for {name}; this model has none, "
                f"so write it with {option}=all"
            )
        for spec, which in zip(self.specs, self.which, strict=True):
            if self._encodings()[which].overrides("weigh") and self.config.normaliser != "softmax":
                raise SpecError(
                    f"'{spec}' computes weights itself, so it goes without normaliser '{self.config.normaliser}'"
                )

    def _attentions(self) -> list[Attention]:
        return [layer.attention for layer in self.layers if isinstance(layer, Layer)]

    @property
    def backend(self) -> str:
        """The attention path: `auto`, `dense` or `flex`; initially that of the config, and can be set at any time."""
        return self._backend

    @backend.setter
    def backend(self, name: str) -> None:
        if name not in {"auto", "dense", "flex"}:
            raise SpecError(f"the backend of attention is 'auto', 'dense' or 'flex', not {name!r}")
        attention = self._attentions()[0]
        for part in self._encodings() if name == "flex" else ():
            check_flex(part, attention.normaliser, attention.temperature)
        self._backend = name

    def _encodings(self) -> list[Encoding]:
        return [part for part in self.encodings if isinstance(part, Encoding)]

    # --- parameters --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def initialize(self, seed: int) -> None:
        """Draw every parameter from its own generator, keyed by (seed, "init", its name)."""
        self.seed = seed

        def stream(name: str) -> torch.Generator:
            return torch.Generator().manual_seed(digest(seed, "init", name, bits=64) % 2**63)

        for name, module in self.named_modules():
            if isinstance(module, Norm):
                module.initialize()
            elif isinstance(module, Normaliser | AttentionTemperature):
                module.initialize(_named(stream, name))
            elif isinstance(module, nn.Linear | nn.Embedding) and not _OWN.search(name):
                normal_(module.weight, self._std(name), stream(f"{name}.weight"))
                if isinstance(module, nn.Linear) and module.bias is not None:
                    module.bias.zero_()
        for index, part in enumerate(self._encodings()):
            part.initialize(_named(stream, f"encodings.{index}"))

    def _std(self, name: str) -> float:
        """The initial standard deviation of a matrix."""
        config = self.config
        if config.initial == "normal":
            return config.initial_sigma
        inner = config.heads * config.head_width
        by_name = {
            "q": (config.width * config.head_width) ** -0.5,
            "out": inner**-0.5,
            "down": config.feed_forward_width**-0.5,
            "embedding": 1.0,
            "head": 1.0,
        }
        return by_name.get(name.rpartition(".")[2], config.width**-0.5)

    def parameter_count(self) -> int:
        """The number of trainable parameters; a shared one counts once."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)

    @torch.no_grad()
    def position_ratio(self, tokens: int = 64) -> float | None:
        """The RMS of what positions add to the embeddings, relative to the RMS of the embeddings; None if nothing."""
        encoding = self._encodings()[0]
        if not encoding.overrides("embed"):
            return None
        weight = self.embedding.weight
        positions_1T = torch.arange(min(tokens, encoding.limit or tokens), dtype=weight.dtype, device=weight.device)[
            None
        ]
        added = encoding.embed(weight.new_zeros(1, positions_1T.shape[1], self.config.width), positions_1T)
        return float(added.square().mean().sqrt() / weight.square().mean().sqrt())

    # --- the forward pass --------------------------------------------------------------------------------------------

    def forward(
        self,
        ids_BT: Tensor,
        *,
        positions_BT: Tensor | None = None,
        lengths: Sequence[int] | Tensor | None = None,
        padding: Literal["right", "left"] = "right",
        documents: Sequence[Sequence[int]] | None = None,
        prefix: Sequence[int] | Tensor | None = None,
        budget: int | Tensor | None = None,
        cache: Cache | None = None,
        taps: Mapping[str, Tap] | None = None,
        only_BT: Tensor | None = None,
    ) -> Tensor:
        """Logits (B, T, V), or (N, V) at the tokens where `only_BT` is true.

        `lengths` are the numbers of real tokens in each row, with padding on the side `padding`; `documents` are the
        lengths of the documents packed into each row; `prefix` the prompt lengths under a prefix mask; `budget` the
        maximum number of tokens of each sequence.
        """
        batch, tokens = self._check_arguments(ids_BT, cache, taps, only_BT)
        past = cache.layout if cache is not None else None
        new = lay_out(
            batch,
            tokens,
            ids_BT.device,
            past=past,
            positions_BT=positions_BT,
            lengths=lengths,
            padding=padding,
            documents=documents,
            prefix=prefix,
            cached=cache is not None,
        )
        self._check(new, cache, budget)
        if documents is not None and not self.prefix_stable:
            raise SpecError(
                "documents cannot be packed under an encoding that reads the number of tokens so far: each would see "
                "the others'; give them a row each"
            )
        if documents is not None and budget is None and self.uses_budget:
            raise SpecError(
                "documents are packed, and the encoding depends on the number of tokens that a sequence may get: "
                "give it as budget, at least as large as the row"
            )
        keys = new if past is None else past.joined(new)
        attention_mask = AttentionMask(self.config.mask, new, keys)
        listening = Taps(taps, self.config.layers) if taps else None

        x = self.embedding(ids_BT)
        working = torch.promote_types(self.embedding.weight.dtype, torch.float32)
        budget_B = self._budget(budget, cache, new, batch, ids_BT.device)
        there_B = without_waiting(keys.counts, ids_BT.device)
        plans = [
            AttentionContext(
                part,
                self.config,
                attention_mask,
                working,
                budget_B if part.prefix_stable else there_B,
                self._attentions()[0].normaliser,
                self.backend,
            )
            for part in self._encodings()
        ]
        with without_autocast(ids_BT.device):
            if plans[0].encoding.overrides("embed"):
                x = plans[0].encoding.checked_embed(x, plans[0].query_positions_BQ)
        if listening is not None:
            x = listening("embeddings", x)
        if self.config.dropout:
            x = F.dropout(x, self.config.dropout, self.training)
        recompute = self.recompute and torch.is_grad_enabled()
        if recompute:
            names = [f"layers.{index}.weights" for index in range(len(self.layers))]
            if listening is not None and any(listening.queries_per_block(name) is not None for name in names):
                raise SpecError(
                    "QueryBlockTap would be shown every block twice under recomputation; set recompute = False"
                )
            weights_tapped = listening is not None and any(listening.has(name) for name in names)
            for context in plans:
                context.precompute_shared(batch, self.training and self.config.attention_dropout > 0, weights_tapped)
        for layer, which in zip(self.layers, self.which, strict=True):
            arguments = (x, plans[which], cache, listening)
            if recompute:
                x = checkpoint(layer, *arguments, use_reentrant=False)
            else:
                x = layer(*arguments)
        if cache is not None:
            cache.layout = keys
        x = self.norm(x)
        if self.config.dropout:
            x = F.dropout(x, self.config.dropout, self.training)
        if listening is not None:
            x = listening("states", x)
        if only_BT is not None:  # its tokens are found where the mask is; a mask on an accelerator would wait for it
            x = x.flatten(0, 1)[without_waiting(only_BT.flatten().nonzero()[:, 0], x.device)]
        return self._logits(x)

    def _logits(self, x: Tensor) -> Tensor:
        if self.config.rescale_head:
            x = x * self.config.width**-0.5
        return F.linear(x, self.embedding.weight) if self.head is None else self.head(x)

    def _check_arguments(
        self, ids_BT: Tensor, cache: Cache | None, taps: Mapping[str, Tap] | None, only_BT: Tensor | None
    ) -> tuple[int, int]:
        """Validate the arguments and return the batch size and the number of tokens."""
        if not isinstance(ids_BT, Tensor) or ids_BT.ndim != 2 or ids_BT.is_floating_point() or not ids_BT.numel():
            got = tuple(ids_BT.shape) if isinstance(ids_BT, Tensor) else type(ids_BT).__name__
            raise SpecError(f"ids must be a (batch, tokens) tensor of whole numbers with at least one token, not {got}")
        if is_host(ids_BT) and int(ids_BT.max()) >= self.config.vocabulary:
            raise SpecError(f"id {int(ids_BT.max())} is not below the vocabulary's size, {self.config.vocabulary}")
        if cache is not None and not isinstance(cache, Cache):
            raise SpecError(f"a cache is made by decoder.cache(budget), not {cache!r}")
        if taps is not None and not isinstance(taps, Mapping):
            raise SpecError("taps are a mapping of names to functions: {'layers.0.weights': function(name, tensor)}")
        if only_BT is not None and (only_BT.dtype != torch.bool or only_BT.shape != ids_BT.shape):
            raise SpecError(f"only_BT must be booleans of shape {tuple(ids_BT.shape)}")
        batch, tokens = ids_BT.shape
        return batch, tokens

    def _check(self, new: TokenLayout, cache: Cache | None, budget: int | Tensor | None) -> None:
        if self.config.mask == "prefix" and new.prefix_BT is None and (cache is None or cache.layout is None):
            raise SpecError("this model has a prefix mask: give prefix, the length of each row's prompt in tokens")
        if self.config.mask != "prefix" and new.prefix_BT is not None:
            raise SpecError(f"prefix belongs to a prefix mask; this model's mask is {self.config.mask}")
        if cache is not None:
            if budget is not None:
                raise SpecError("the cache holds the budget: give it to decoder.cache(budget), not with each call")
            if torch.is_grad_enabled():
                raise SpecError("a cache is for decoding; wrap the call in torch.no_grad()")
            if cache.owner() is not self:
                raise SpecError("this cache was made by another model; make one with this model's cache(budget)")
            cache.check_can_append(self.config.mask, new)
        if new.largest >= 2**24 and self.embedding.weight.dtype != torch.float64:
            raise SpecError(f"position {new.largest} is not exact in fp32; count from a nearer origin, or use float64")
        for part in self._encodings():
            if part.limit is not None and new.tokens and new.largest >= part.limit:
                name, more = type(part).__name__.lower(), ""
                if known := {"limit", "base"} & set(options(type(part))):
                    more = f"a limit of at least {new.largest + 1}, or " if "limit" in known else "a larger base, or "
                raise SpecError(
                    f"position {new.largest} is past the last one {name} has, {part.limit - 1}; "
                    f"use {more}shorter sequences"
                )

    def _budget(
        self, budget: int | Tensor | None, cache: Cache | None, new: TokenLayout, batch: int, device: torch.device
    ) -> Tensor:
        if cache is not None:
            budget = cache.budget
        if budget is None:
            return without_waiting(new.counts, device)
        budget_B = torch.as_tensor(budget).reshape(-1)
        if budget_B.is_floating_point() or len(budget_B) not in {1, batch}:
            raise SpecError(f"budget must be a whole number, or one for each of {batch} rows, not {budget}")
        if is_host(budget_B):  # reading a value from another device would wait for all that it computes
            if cache is None and bool((budget_B < torch.tensor(new.counts)).any()):
                raise SpecError(
                    f"a budget of {budget_B.tolist()} is less than the {list(new.counts)} tokens that are there"
                )
            if len(budget_B) > 1 and bool((budget_B == budget_B[0]).all()):
                budget_B = budget_B[:1]
        return without_waiting(budget_B, device)

    @property
    def prefix_stable(self) -> bool:
        """Whether every encoding claims that later tokens never change earlier logits."""
        return all(part.prefix_stable for part in self._encodings())

    @property
    def uses_budget(self) -> bool:
        """Whether the number of tokens that a sequence may get changes the logits."""
        return any(part.uses_budget for part in self._encodings())

    def cache(self, budget: int | Tensor) -> Cache:
        """An empty cache for sequences that may get `budget` tokens, prompt and answer together."""
        if not self.prefix_stable:
            unstable = next(
                str(spec)
                for spec, which in zip(self.specs, self.which, strict=True)
                if not self._encodings()[which].prefix_stable
            )
            raise SpecError(
                f"a model with '{unstable}' has no cache: every new token changes the states of all others; give the "
                "whole sequence each time, as greedy(...) and generate(..., use_cache=False) do"
            )
        return Cache(self, self.config.layers, budget)

    def effective(self) -> list[str]:
        """The options of each encoding as its module has them; one that differs from its spec is an error."""
        told = []
        for index, part in enumerate(self._encodings()):
            layers = [layer for layer, which in enumerate(self.which) if which == index]
            spec = self.specs[layers[0]]
            known = {key: getattr(part, key, None) for key in options(type(part))}
            for key in (key for key, got in known.items() if isinstance(got, Tensor)):
                raise SpecError(f"option {key!r} of '{spec}' cannot be read back: {option_taken_hint(key)}")
            for key, asked in spec.options:
                if (got := getattr(part, key, asked)) != asked:
                    raise SpecError(f"'{spec}' asks for {key}={format_value(asked)}, but the module has {key}={got}")
            said = [f"{key}={format_value(value)}" for key, value in known.items() if value is not None]
            where = f"layer{'' if len(layers) == 1 else 's'} {', '.join(map(str, layers))}"
            told.append(" ".join([f"{where}: {spec.name}", *said]))
        return told

    def describe(self) -> dict[str, object]:
        """A description of this model: config fields, encodings, σ, ratio of positions to embeddings."""
        return {
            **self.config.model_dump(),
            "attention_scale": self.config.scale,
            "encodings": [str(spec) for spec in self.specs],
            "instances": len(self.encodings),
            "parameters": self.parameter_count(),
            "sigma": self.config.initial_sigma if self.config.initial == "normal" else None,
            "position_ratio": self.position_ratio(),
            "seed": self.seed,
        }


_OWN = re.compile(r"^encodings\.|\.attention\.(normaliser|temperature)\.")
"""Modules that initialize themselves."""


def _named(stream: Callable[[str], torch.Generator], prefix: str) -> Callable[[str], torch.Generator]:
    return lambda name: stream(f"{prefix}.{name}")
