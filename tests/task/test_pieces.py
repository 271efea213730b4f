"""A Hugging Face tokenizer in place of the vocabulary: boundaries hold or are refused, digits are reported."""

import json
from shutil import copyfile, copytree

import pytest

tokenizers = pytest.importorskip("tokenizers")
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers  # noqa: E402

from lengthwise.spec import SpecError  # noqa: E402
from lengthwise.task import build_task  # noqa: E402
from lengthwise.task.audit import audit  # noqa: E402
from lengthwise.task.block import materialise, training_block  # noqa: E402
from lengthwise.task.sets import instance_factory, trained_lengths  # noqa: E402
from lengthwise.task.tokenizer import HuggingFaceTokenizer  # noqa: E402

TEXTS = [
    *(
        "Compute 9 6 4 + 5 8 ? The answer is 1 0 2 2.",
        "Copy: a b c [SEP] a b c",
        "Sort the following list [ M, E, 5 ].",
    ),
    *(" ".join("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"), "12 123 1234 12345 1234567"),
    *("the quick brown fox jumps over lazy dogs again and again", "some more words for the vocabulary of this test"),
]


def save(tokenizer, folder, **special):
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return str(folder)


@pytest.fixture(scope="module")
def unigram(tmp_path_factory):
    """Like T5's: SentencePiece with ▁ for a space, no beginning token."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Replace(" {2,}", " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=160, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>")
    tokenizer.train_from_iterator(TEXTS * 20, trainer)
    return save(tokenizer, tmp_path_factory.mktemp("t") / "unigram", eos_token="</s>", pad_token={"content": "<pad>"})


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    """Like GPT-2's: bytes, Ġ for a space, digits merge."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([*TEXTS, *(["1234567 123 12"] * 50)] * 20, trainer)
    return save(tokenizer, tmp_path_factory.mktemp("t") / "bpe", eos_token="<|endoftext|>")


@pytest.fixture(scope="module")
def merging(tmp_path_factory):
    """One that merges across a space: the prompt's `=` with the answer's first letter."""
    tokenizer = Tokenizer(models.BPE(unk_token="?"))
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=["</s>", "?"])
    tokenizer.train_from_iterator(["0 1 = even", "1 1 = odd", "= odd", "= even"] * 50, trainer)
    return save(tokenizer, tmp_path_factory.mktemp("t") / "merging", eos_token="</s>")


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("name", ["addition:protocol=paper", "copy:protocol=ours:bos=false:alphabet=20"])
def test_the_prompts_tokens_begin_the_whole(kind, name, request):
    folder = request.getfixturevalue(kind)
    task = build_task(f"{name}:tokenizer={folder}")
    block = training_block(task, 0, 50)
    pieces = task.vocabulary
    for row in range(50):
        example = task.to_example(instance_factory(task, "train", int(block.lengths_N[row]))(int(block.indices_N[row])))
        ids = block.ids[block.starts_N[row] : block.starts_N[row + 1]].tolist()
        assert ids[-1] == pieces.eos
        prompt = int(block.prompt_lengths_N[row])
        whole = example.text
        assert ids[:-1] == pieces.encode(whole)
        assert ids[:prompt] == pieces.encode(" ".join(example.prompt).replace(" ##", ""))


def test_a_merge_across_the_boundary_is_refused(merging):
    with pytest.raises(SpecError, match="merges the end of the prompt"):
        training_block(build_task(f"parity:bos=false:tokenizer={merging}"), 0, 50)


def test_a_beginning_token_it_does_not_have_is_refused(unigram):
    with pytest.raises(SpecError, match="write bos=false"):
        training_block(build_task(f"addition:tokenizer={unigram}"), 0, 5)


def test_it_reports_how_digits_are_split(unigram, bpe):
    assert (
        "merge" in HuggingFaceTokenizer(bpe).digit_tokenization()["rule"]
        or "one token" in HuggingFaceTokenizer(bpe).digit_tokenization()["rule"]
    )
    assert set(HuggingFaceTokenizer(unigram).digit_tokenization()) == {
        "rule",
        "apart",
        "7",
        "42",
        "365",
        "1234",
        "1234567",
        "00700",
    }


def test_the_alphabet_is_the_tokenizers_under_paper(tmp_path):
    # It knows all letters but `b`, and some words; `two words` is not one.
    known = [one for one in "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKL" if one != "b"]
    vocabulary = {
        word: number for number, word in enumerate(["</s>", "<unk>", *known, "house", "two words", "tree", "sun"])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder = save(tokenizer, tmp_path / "words", eos_token="</s>")
    task = build_task(f"sort:protocol=paper:tokenizer={folder}")
    assert task.letters == (*known, "house", "tree", "sun")
    with pytest.raises(SpecError, match="6052 are needed"):
        _ = build_task(f"copy:variant=same:protocol=paper:tokenizer={folder}").letters


def test_arguments_of_several_pieces_are_a_named_deviation(unigram):
    assert len(HuggingFaceTokenizer(unigram).encode("A1 Q17")) > 2
    assert any("520 symbols" in said for said in build_task("pcfg:protocol=paper").published.deviations)


def test_the_tokenizer_changes_draws_under_paper_only(unigram):
    plain, named = (build_task(f"parity{more}") for more in ("", f":bos=false:tokenizer={unigram}"))
    assert instance_factory(plain, "train", 8)(3) == instance_factory(named, "train", 8)(3)
    paper = build_task(f"sort:protocol=paper:tokenizer={unigram}")
    assert paper.key() != build_task("sort:protocol=paper").key()


@pytest.fixture(scope="module")
def characters(tmp_path_factory):
    """One token per character, spaces too."""
    letters = [chr(code) for code in range(32, 127)]
    vocabulary = {one: number for number, one in enumerate(["</s>", "<s>", "<unk>", *letters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return save(tokenizer, tmp_path_factory.mktemp("t") / "characters", eos_token="</s>", bos_token="<s>")


@pytest.mark.parametrize("name", ["scan", "copy", "addition:protocol=paper", "sort:scratchpad=full", "pcfg"])
@pytest.mark.parametrize("kind", ["characters", "bpe"])
def test_no_right_answer_is_cut_in_tokens(name, kind, request):
    task = build_task(f"{name}:bos=false:tokenizer={request.getfixturevalue(kind)}")
    for length in (trained_lengths(task)[5], task.longest):
        block = materialise(task, "train", [length] * 40, range(40))
        assert (block.token_counts_N - block.prompt_lengths_N).max() <= task.answer_limit(length)
        example = task.to_example(task.longest_answer_instance(length))
        ids, prompt = task.vocabulary.sequence(example.prompt, example.target, False)
        assert len(ids) - prompt <= task.answer_limit(length)


@pytest.mark.slow
def test_the_limit_of_a_list_is_exact_and_an_audit_counts_tokens(characters):
    task = build_task(f"scan:longest=8:tokenizer={characters}")
    assert task.answer_limit(8) == 49 + 49 // 4  # eight times `Right` and its space, and the end
    assert not audit(task, "scan").problems


def test_a_changed_tokenizer_is_another_task_in_the_same_process(characters, unigram, tmp_path):
    folder = tmp_path / "copied"
    copytree(characters, folder)
    spec = f"parity:bos=false:tokenizer={folder}"
    before = build_task(spec)
    assert build_task(spec) == before
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<s>"}))
    another = build_task(spec)
    copyfile(f"{unigram}/tokenizer.json", folder / "tokenizer.json")
    assert len({before, another, build_task(spec)}) == 3


def test_no_tokenizer_there_is_told(tmp_path):
    with pytest.raises(SpecError, match=r"no tokenizer\.json"):
        HuggingFaceTokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SpecError, match="is no tokenizer"):
        HuggingFaceTokenizer(str(tmp_path))


def test_coupled_positions_need_the_word_level_vocabulary(unigram):
    from lengthwise.encoding import build_positions

    task = build_task(f"addition:reversed=answer:bos=false:tokenizer={unigram}")
    with pytest.raises(SpecError, match="leave out tokenizer"):
        build_positions("coupled").of(task).places([5], [6], 0, 2)
