"""What is read from an encoding's file is what its class has: identity without torch is identity."""

import typing

import pytest

from lengthwise.encoding import ENCODINGS
from lengthwise.encoding.signature import canonical_encoding, encoding_stub
from lengthwise.spec import Spec, SpecError, canonical, options, resolve

SPELLED = [
    "rope:theta=500",
    "rope:fraction=0.5:interleaved=true",
    "rope:fraction=1",
    "t5:buckets=32",
    "learned:limit=64",
]


@pytest.mark.parametrize("name", ENCODINGS)
def test_an_outline_has_the_options_and_the_version_of_the_class(name):
    cls, drawn = resolve("encoding", ENCODINGS, name), encoding_stub(name)
    assert drawn.version == cls.version
    assert _told(drawn) == _told(cls)


def _told(cls: type) -> dict[str, tuple[object, object]]:
    known = options(cls)
    hints = typing.get_type_hints(cls.__init__) if known else {}
    return {key: (item.default, hints[key]) for key, item in known.items()}


@pytest.mark.parametrize("text", [*ENCODINGS, *SPELLED])
def test_the_one_spelling_is_the_same_with_and_without_torch(text):
    assert canonical_encoding(Spec.of(text)) == canonical("encoding", ENCODINGS, Spec.of(text), positional_count=1)


@pytest.mark.parametrize("text", ["rope:thetas=2", "rope:fraction=wide", "alibi:buckets=3", "ropes"])
def test_what_is_refused_is_refused_in_the_same_words(text):
    with pytest.raises(SpecError) as without:
        canonical_encoding(Spec.of(text))
    with pytest.raises(SpecError) as with_torch:
        canonical("encoding", ENCODINGS, Spec.of(text), positional_count=1)
    assert str(without.value) == str(with_torch.value)
