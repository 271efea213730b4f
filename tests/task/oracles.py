"""What every task's answer must be, from the text of its prompt alone.

Written from the definitions and from the exact texts of the original study, not from the generators, and by the
plainest means: a prompt is split by a regular expression, and its answer is found with `int`, `sorted`, `eval` or by
rewriting strings.
"""

import re
from collections.abc import Callable
from functools import lru_cache, reduce
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any, NamedTuple

ORDER = digits + ascii_lowercase + ascii_uppercase
"""The order of single symbols in `sort`."""
COMPONENTS = ("input", "computation", "output", "variables", "remaining")


class Oracle(NamedTuple):
    """How to read a prompt under either protocol, and what follows from it."""

    ours: str
    """The whole prompt; its groups are what `read` is given."""
    paper: str | None
    read: Callable[..., Any]
    """The values that the prompt states; an assertion fails where the definition does not allow them."""
    units: Callable[[Any], int]
    """The length, in the task's unit."""
    solve: Callable[[Any], str]
    """The answer, without the sentence around it."""
    says: str = "{}"
    """The sentence around it under `paper`."""
    steps: Callable[[Any], list[tuple[str, ...]]] | None = None
    """The five components of each step; the fourth is None where the task keeps no variables."""
    listed: Callable[[str], str] = str
    """How the answer is written under `paper`, where it is not written as in `ours`."""


@lru_cache(maxsize=512)
def components(form: str) -> frozenset[str]:
    """The components that a scratchpad format writes: `full-input` is all but the input, a code has a bit for each."""
    if form == "minimal":
        return frozenset({"computation", "output"})
    if form == "full" or form.startswith("full-"):
        return frozenset(COMPONENTS) - {form.removeprefix("full-")}
    bits = re.fullmatch("i([01])c([01])o([01])v([01])r([01])", form)
    assert bits, f"{form} is not a format"
    return frozenset(name for name, bit in zip(COMPONENTS, bits.groups(), strict=True) if bit == "1")


def _permutations(words: str) -> list[str]:
    assert all(sorted(word) == ["1", "2", "3"] for word in words.split()), words
    return words.split()


def _stored(stored: str, asked: str) -> tuple[int, dict[str, str], list[str]]:
    """The number of tokens, values by key, and the keys that are asked, of words of two tokens."""
    found = re.findall(r"(\d+ \d+) : (\d+ \d+) _", stored)
    rest = re.sub(r"(\d+ \d+) : (\d+ \d+) _", "", stored)
    assert not rest.replace("_", "").strip() and len(dict(found)) == len(found), stored
    return len(stored.split()), dict(found), re.findall(r"\? (\d+ \d+)", asked)


def values(variant: str, protocol: str, prompt: str) -> Any:
    """What the prompt states, or an AssertionError where it is not a prompt of the task."""
    oracle = ORACLES[variant]
    pattern = oracle.paper if protocol == "paper" else oracle.ours
    assert pattern is not None, f"{variant} is not in the original study"
    match = re.fullmatch(pattern, prompt)
    assert match, f"not a prompt of {variant} under {protocol}: {prompt}"
    return oracle.read(*match.groups())


def answer(variant: str, protocol: str, prompt: str) -> str:
    """The text of the right answer to a prompt's text."""
    return _said(ORACLES[variant], protocol, values(variant, protocol, prompt))


def target(variant: str, protocol: str, prompt: str, form: str = "none") -> tuple[str, int]:
    """The text that has to follow a prompt's text, under a scratchpad format, and the prompt's length in units."""
    oracle, read = ORACLES[variant], values(variant, protocol, prompt)
    said = _said(oracle, protocol, read)
    if form != "none":
        assert oracle.steps is not None, f"{variant} has no steps"
        steps = " # ".join(_step(step, components(form)) for step in oracle.steps(read))
        said = f"Thinking step by step: {steps} . Thus, {said}" if protocol == "paper" else f"{steps} Thus, {said}"
    # Components may be empty; the original's tokenizer does not see double spaces.
    return " ".join(said.split()), oracle.units(read)


def _said(oracle: Oracle, protocol: str, read: Any) -> str:
    said = oracle.solve(read)
    return oracle.says.format(oracle.listed(said)) if protocol == "paper" else said


def _step(step: tuple[str, ...], on: frozenset[str]) -> str:
    marked = ("in {}", "comp {}", "out {}", "[ {} ]", "re {}")
    return " ".join(
        mark.format(said)
        for name, mark, said in zip(COMPONENTS, marked, step, strict=True)
        if name in on and said != NONE
    )


NONE = "\0"
"""In place of variables, for a task that keeps none; the empty text is a component that says nothing."""


def spaced(number: int) -> str:
    """A number digit by digit, a negative one behind `-`: `- 1 2`."""
    return " ".join(str(number))


@lru_cache(maxsize=1 << 15)
def number(text: str) -> int:
    """The number that digits with spaces write, without leading zeros."""
    assert re.fullmatch(r"0|[1-9]( \d)*", text), f"not a number: {text}"
    return int(text.replace(" ", ""))


# --- copy, reverse ---------------------------------------------------------------------------------------------------


def _repeated(text: str) -> list[str]:
    assert len(set(text.split())) == 1, f"more than one symbol: {text}"
    return text.split()


def _replaced(old: str, new: str, text: str) -> tuple[str, str]:
    assert _repeated(text)[0] == old != new
    return new, text


def _turned(text: str) -> str:
    return " ".join(text.split()[::-1])


# --- numbers ---------------------------------------------------------------------------------------------------------


def _digits(n: int) -> int:
    return len(str(n))


def _factors(a: str, b: str) -> tuple[int, int]:
    assert number(a) > 0 and 0 < number(b) < 100, "no factor is 0, and the second has one or two digits"
    return number(a), number(b)


def _columns(pair: tuple[int, int]) -> list[tuple[str, ...]]:
    a, b = pair
    width, steps = max(_digits(a), _digits(b)), []
    for place in range(_digits(a + b)):  # one more than the operands have, where the sum is longer
        low = 10**place
        ones = [n // low % 10 for n in pair]
        carry = (a % low + b % low) // low
        total, rest = sum(ones) + carry, [spaced(n // (10 * low)) if place + 1 < width else "" for n in pair]
        worked = f"{ones[0]} + {ones[1]} + carry = {sum(ones)} + {carry} = {total}"
        steps.append((f"{ones[0]}, {ones[1]}", worked, str(total % 10), f"carry: {total // 10}", " + ".join(rest)))
    return steps


def _polynomial(x: str, terms: str) -> tuple[int, list[str]]:
    """x and the terms, as the original writes them; Python evaluates those."""
    each = re.sub(r"(-?)(\d) x\^(\d)", lambda term: f"{'- ' * bool(term[1])}{term[2]} * x ** {term[3]}", terms).split(
        " + "
    )
    assert all(re.fullmatch(r"(0|(- )?[1-3]) \* x \*\* [0-3]", term) for term in each), terms
    assert re.fullmatch("0|(- ?)?[12]", x), x
    return int(x.replace(" ", "")), each


def _evaluated(read: tuple[int, list[str]]) -> int:
    x, terms = read
    return sum(eval(_compiled(term), {"x": x}) for term in terms)


@lru_cache(maxsize=64)
def _compiled(term: str) -> Any:
    return compile(term, term, "eval")


def _terms(read: tuple[int, list[str]]) -> list[tuple[str, ...]]:
    x, terms = read
    steps = []
    for place, term in enumerate(terms):
        factor, power = term.split(" * ")
        value, before = _evaluated((x, [term])), _evaluated((x, terms[:place])) % 10
        worked = f"{factor} * {spaced(x)} {power[2:]} = {factor} * {spaced(_evaluated((x, [power])))}"
        added = f"sum: {before} + {spaced(value)} = {(before + value) % 10}"
        steps.append((term, worked, spaced(value), added, " + ".join(terms[place + 1 :])))
    return steps


def _addends(text: str) -> list[int]:
    assert re.fullmatch(r"[1-9]( \+ [1-9])+", text), text
    return [int(part) for part in text.split(" + ")]


def _running(addends: list[int]) -> list[tuple[str, ...]]:
    steps = []
    for place, addend in enumerate(addends):
        before = sum(addends[:place]) % 10
        total = spaced(before + addend)
        rest = " + ".join(map(str, addends[place + 1 :]))
        worked = f"{addend} + sum = {addend} + {before} ="
        steps.append((str(addend), worked, total, f"sum: {total} = {total[-1]}", rest))
    return steps


def _expression(text: str) -> str:
    assert re.fullmatch(r"[0-4]( [+*-] [0-4])*", text), text
    return text


def plain(prompt: str, said: str, reversed_: str, padded: bool, hints: int) -> tuple[str, str]:
    """A sum or product and its answer without reversal, padding, hints and spaces, which have to be as defined."""
    mark = r"h\d+ " if hints else ""
    parts = re.fullmatch(r"(.+) ([+*]) (.+) =", prompt)
    assert parts, prompt
    found, starts, widths = [], set(), []
    for part, backwards, gap in (
        (parts[1], reversed_ == "all", "( _)?"),
        (parts[3], reversed_ == "all", "( _)?"),
        (said, reversed_ != "none", ""),
    ):
        assert re.fullmatch(rf"{mark}\d{gap}( {mark}\d{gap})*", part), part
        symbols = part.replace(" _", "").split()
        shown, marks = symbols[bool(hints) :: 1 + bool(hints)], symbols[::2] if hints else []
        if not backwards:
            shown, marks = shown[::-1], marks[::-1]  # from the ones up
        indices = [int(one[1:]) for one in marks]
        assert all(0 <= index < hints for index in indices)
        starts |= {index - significance for significance, index in enumerate(indices)}
        widths.append(len(shown))
        digits_ = " ".join(reversed(shown))
        found.append(re.sub(r"^(0 )+(?=\d)", "", digits_) if padded else digits_)
    assert len(starts) <= 1, f"equal significance, unequal hints: {prompt} {said}"
    assert not padded or widths[0] == widths[1] < widths[2]
    return f"{found[0]} {parts[2]} {found[1]} =", found[2]


# --- parity, sort, lego ----------------------------------------------------------------------------------------------


def _bits(text: str) -> str:
    assert re.fullmatch("[01]( [01])*|[01](, [01])*", text), text
    return re.sub("[ ,]", "", text)


def _flips(bits: str) -> list[tuple[str, ...]]:
    steps = []
    for place, bit in enumerate(bits):
        before, after = (str(bits[:end].count("1") % 2) for end in (place, place + 1))
        rest = f"[ {', '.join(bits[place + 1 :])} ]"
        steps.append((bit, f"{bit} ** par = {bit} ** {before}", after, f"par: {after}", rest))
    return steps


def _singles(text: str) -> list[str]:
    items = re.split(", | ", text)
    assert all(len(item) == 1 and item in ORDER[:50] for item in items), text
    return items


def _multis(text: str) -> list[str]:
    items = re.split(" ?, ", text)
    assert all(10 <= number(item) <= 9999 for item in items), text
    return items


def _rank(item: str) -> int:
    # A single symbol comes where it is in the order; a number is compared as a number.
    return ORDER.index(item) if len(item) == 1 else number(item)


def _selected(items: list[str]) -> list[tuple[str, ...]]:
    left, steps = list(items), []
    while left:
        front, least = left[0], min(left, key=_rank)
        where = left.index(least)
        left[0], left[where] = least, front
        left = left[1:]
        steps.append((front, "The minimum of the unsorted portion", least, NONE, f"[ {', '.join(left)} ]"))
    return steps


def _chain(clauses: str, asked: str) -> tuple[list[tuple[str, str, str]], str]:
    each = re.split(" ?, ", clauses)
    first = re.fullmatch("([A-Za-z]+) = ([+-])1", each[0])
    later = [re.fullmatch("([A-Za-z]+) = ([+-]) ([A-Za-z]+)", clause) for clause in each[1:]]
    assert first and all(later), clauses
    read = [(first[1], first[2], ""), *(match.groups() for match in later if match)]
    names = [name for name, _, _ in read]
    assert len(set(names)) == len(names), f"a variable is set twice: {clauses}"
    assert [of for _, _, of in read[1:]] == names[:-1], f"not a chain: {clauses}"
    assert names.index(asked) >= len(names) / 2, f"asked for in the first half: {clauses}; {asked}"
    return read, asked


def _sign(read: tuple[list[tuple[str, str, str]], str]) -> str:
    clauses, asked = read
    names = [name for name, _, _ in clauses]
    minus = [sign for _, sign, _ in clauses][: names.index(asked) + 1].count("-")
    return "-1" if minus % 2 else "+1"


def _links(read: tuple[list[tuple[str, str, str]], str]) -> list[tuple[str, ...]]:
    clauses, asked = read
    written = [f"{name} = {sign} {of}" if of else f"{name} = {sign}1" for name, sign, of in clauses]
    steps = []
    for place, (name, sign, of) in enumerate(clauses):
        worked = f"{sign} {of} = {sign} {_sign((clauses, of))}" if of else ""
        steps.append((name, worked, _sign((clauses, name)), NONE, ", ".join(written[place + 1 :])))
        if name == asked:
            break
    return steps


# --- scan, pcfg ------------------------------------------------------------------------------------------------------

_SIDE = "(?:(?:opposite|around) )?(?:left|right)"
_PHRASE = f"(?:(?:walk|look|run|jump)(?: {_SIDE})?|turn {_SIDE})(?: twice| thrice)?"
SCAN = f"{_PHRASE}(?: (?:and|after) {_PHRASE})?"
"""The grammar of SCAN: one regular expression, since it has no recursion."""

# A phrase is the first of these that it matches; a verb alone means itself.
_REWRITE = (
    ("turn around (left|right)", r"\1 \1 \1 \1"),
    ("turn opposite (left|right)", r"\1 \1"),
    ("turn (left|right)", r"\1"),
    ("(walk|look|run|jump) around (left|right)", r"\2 \1 \2 \1 \2 \1 \2 \1"),
    ("(walk|look|run|jump) opposite (left|right)", r"\2 \2 \1"),
    ("(walk|look|run|jump) (left|right)", r"\2 \1"),
)


def _actions(command: str) -> str:
    if " and " in command:
        return " ".join(map(_actions, command.split(" and ")))
    if " after " in command:
        return " ".join(map(_actions, command.split(" after ")[::-1]))
    phrase, often = re.fullmatch("(.*?)( twice| thrice)?", command).groups()
    for pattern, meaning in _REWRITE:
        phrase, found = re.subn(f"^{pattern}$", meaning, phrase)
        if found:
            break
    return " ".join([phrase.title()] * {None: 1, " twice": 2, " thrice": 3}[often])


_SYMBOLS = r"[A-Z]\d+(?: [A-Z]\d+)*"
_UNARY = {
    "copy": lambda x: x,
    "reverse": lambda x: x[::-1],
    "shift": lambda x: x[1:] + x[:1],
    "echo": lambda x: x + x[-1:],
    "swap_first_last": lambda x: x[-1:] + x[1:-1] + x[:1],
    "repeat": lambda x: x + x,
}
_BINARY = {
    "append": lambda a, b: a + b,
    "prepend": lambda a, b: b + a,
    "remove_first": lambda a, b: b,
    "remove_second": lambda a, b: a,
}
FUNCTIONS = (*_UNARY, *_BINARY)
# A function whose arguments are all strings; a string ends at a comma or at the end.
_READY = re.compile(rf"(?:({'|'.join(_UNARY)}) ({_SYMBOLS})|({'|'.join(_BINARY)}) ({_SYMBOLS}) , ({_SYMBOLS}))(?= ,|$)")


def _applied(match: re.Match[str]) -> str:
    unary, only, binary, a, b = match.groups()
    if unary:
        return " ".join(_UNARY[unary](only.split()))
    return " ".join(_BINARY[binary](a.split(), b.split()))


def _strings(source: str) -> str:
    words = source.split()
    assert all(re.fullmatch(r"[A-Z]([1-9]|1\d|20)", word) for word in words if word not in (*FUNCTIONS, ",")), source
    given = re.findall(_SYMBOLS, source)
    assert len(set(given)) == len(given), f"an argument string comes twice: {source}"
    assert all(2 <= len(string.split()) <= 5 for string in given), source
    return source


def _interpreted(source: str) -> str:
    found = 1
    while found:
        source, found = _READY.subn(_applied, source)
    assert re.fullmatch(_SYMBOLS, source), f"cannot be evaluated: {source}"
    assert source.count(" ") < 736, "answers have at most 736 symbols"
    return source


# --- the others ------------------------------------------------------------------------------------------------------


def _letters(text: str, asked: str) -> tuple[list[str], str]:
    letters = text.split()
    assert set(letters) | {asked} <= set("abcd"), text
    return letters, asked


def _open(text: str) -> tuple[int, str]:
    left, before = text.replace(" ", ""), ""
    while left != before:
        before, left = left, left.replace("()", "").replace("[]", "")
    assert left and set(left) <= {"(", "["} and left[0] == text[0], f"not the beginning of a balanced string: {text}"
    return len(text.split()), left


def _instructions(text: str) -> list[tuple[str, str]]:
    whole = re.fullmatch("w [01]( [wir] [01])* r", text)
    assert whole, text
    each = re.findall("([wir]) ([01])", text)
    for place, (what, bit) in enumerate(each):
        assert what != "r" or bit == _written(each[:place]), f"a read shows a wrong bit: {text}"
    return each


def _written(instructions: list[tuple[str, str]]) -> str:
    return [bit for what, bit in instructions if what == "w"][-1]


def _pairs(text: str, asked: str) -> tuple[list[tuple[str, str]], list[str]]:
    given, keys = re.findall(r"(k\d+) (v\d+)", text), asked.split()
    assert " ".join(map(" ".join, given)) == text
    assert len(dict(given)) == len(given), f"a key comes twice: {text}"
    assert len(set(keys)) == len(keys) == min(2, len(given)), f"asked for: {asked}"
    return given, keys


def _list(says: str) -> Callable[[str], str]:
    """`[ a, b ]` from the answer in `ours`, whose items are parted by `says`."""
    return lambda said: f"[ {', '.join(said.split(says))} ]"


_COPY = {"ours": r"(.+) \[SEP\]", "paper": r"Copy: (.+) \[SEP\]"}
_REVERSE = {**_COPY, "paper": r"Reverse: (.+) \[SEP\]"}
_SORT = {"ours": r"(.+) \[SEP\]", "paper": r"Sort the following list \[ (.+) \]\."}
_ADD = {"ours": r"([\d ]+) \+ ([\d ]+) =", "paper": r"Compute ([\d ]+) \+ ([\d ]+) \?"}
_ANSWER = "The answer is {}."


def _words(text: str) -> int:
    return len(text.split())


ORACLES = {
    "copy:variant=same": Oracle(**_COPY, read=_repeated, units=len, solve=" ".join),
    "copy:variant=same2": Oracle(**_COPY, read=_repeated, units=len, solve=lambda read: " ".join(read + read)),
    "copy:variant=replace": Oracle(
        ours=r"(\S+) (\S+) \[NEXT\] (.+) \[SEP\]",
        paper=r"Replace (\S+) with (\S+) in (.+) \[SEP\]",
        read=_replaced,
        units=lambda read: _words(read[1]),
        solve=lambda read: " ".join(read[0] for _ in read[1].split()),
    ),
    "copy:variant=random": Oracle(**_COPY, read=str, units=_words, solve=str),
    "copy:variant=random2": Oracle(**_COPY, read=str, units=_words, solve=lambda read: f"{read} [NEXT] {read}"),
    "reverse:variant=once": Oracle(**_REVERSE, read=str, units=_words, solve=_turned),
    "reverse:variant=twice": Oracle(
        **_REVERSE, read=str, units=_words, solve=lambda read: f"{_turned(read)} [NEXT] {_turned(read)}"
    ),
    "reverse:variant=back": Oracle(
        **_REVERSE, read=str, units=_words, solve=lambda read: f"{_turned(read)} [NEXT] {read}"
    ),
    "addition": Oracle(
        **_ADD,
        read=lambda a, b: (number(a), number(b)),
        units=lambda read: max(map(_digits, read)),
        solve=lambda read: spaced(sum(read)),
        says=_ANSWER,
        steps=_columns,
    ),
    "polynomial": Oracle(
        ours=r"(\S+) : (.+) =",
        paper=r"Evaluate at x = (- \d|\d) in (.+) \?",
        read=_polynomial,
        units=lambda read: len(read[1]),
        solve=lambda read: str(_evaluated(read) % 10),
        says=_ANSWER,
        steps=_terms,
    ),
    "sort:variant=single": Oracle(
        **_SORT,
        read=_singles,
        units=len,
        solve=lambda read: " ".join(sorted(read, key=_rank)),
        says="The sorted list is {}.",
        steps=_selected,
        listed=_list(" "),
    ),
    "sort:variant=multi": Oracle(
        **_SORT,
        read=_multis,
        units=len,
        solve=lambda read: " , ".join(sorted(read, key=_rank)),
        says="The sorted list is {}.",
        steps=_selected,
        listed=_list(" , "),
    ),
    "summation": Oracle(
        ours=r"(.+) =",
        paper=r"Compute: (.+) \.\[SEP\]",
        read=_addends,
        units=len,
        solve=lambda read: str(sum(read) % 10),
        says="The answer is {} .",
        steps=_running,
    ),
    "parity": Oracle(
        ours=r"(.+) =",
        paper=r"Is the number of 1's even in the sequence \[ (.+) \] \?",
        read=_bits,
        units=len,
        solve=lambda read: "odd" if read.count("1") % 2 else "even",
        says=_ANSWER,
        steps=_flips,
        listed={"even": "Yes", "odd": "No"}.__getitem__,
    ),
    "lego": Oracle(
        ours=r"(.+) ; (\S+) =",
        paper=r"If (.+)\. Then, what is the value of (\S+)\?",
        read=_chain,
        units=lambda read: len(read[0]),
        solve=_sign,
        says=_ANSWER,
        steps=_links,
    ),
    "scan": Oracle(
        ours=rf"({SCAN}) \[SEP\]",
        paper=rf"Solve: ({SCAN})\[SEP\]",
        read=_actions,
        units=_words,
        solve=str,
    ),
    "pcfg": Oracle(
        ours=r"(.+) \[SEP\]",
        paper=r"Solve: (.+)\[SEP\]",
        read=_strings,
        units=lambda read: sum(word in FUNCTIONS for word in read.split()),
        solve=_interpreted,
    ),
    "count": Oracle(
        ours=r"(.+) : (\S+) =",
        paper=None,
        read=_letters,
        units=lambda read: len(read[0]),
        solve=lambda read: spaced(read[0].count(read[1])),
    ),
    "multiplication": Oracle(
        ours=r"([\d ]+) \* ([\d ]+) =",
        paper=None,
        read=_factors,
        units=lambda read: _digits(read[0]),
        solve=lambda read: spaced(read[0] * read[1]),
    ),
    "dyck": Oracle(
        ours=r"(.+) \[SEP\]",
        paper=None,
        read=_open,
        units=lambda read: read[0],
        solve=lambda read: " ".join({"(": ")", "[": "]"}[bracket] for bracket in reversed(read[1])),
    ),
    "recall": Oracle(
        ours=r"(.+) \[SEP\] (.+)",
        paper=None,
        read=_pairs,
        units=lambda read: len(read[0]),
        solve=lambda read: " ".join(dict(read[0])[key] for key in read[1]),
    ),
    "flipflop": Oracle(
        ours="(.+)",
        paper=None,
        read=_instructions,
        units=lambda read: len(read) + 1,
        solve=_written,
    ),
    "modular": Oracle(
        ours=r"(.+) =",
        paper=None,
        read=_expression,
        units=lambda read: len(read.split()[::2]),
        solve=lambda read: str(eval(read) % 5),
    ),
    "group": Oracle(
        ours=r"(.+) =",
        paper=None,
        read=_permutations,
        units=len,
        solve=lambda read: reduce(lambda a, b: "".join(b[int(place) - 1] for place in a), read),
    ),
    "majority": Oracle(
        ours=r"([01](?: [01])*) =",
        paper=None,
        read=str.split,
        units=len,
        solve=lambda read: ["tie", "1", "0"][(read.count("1") > read.count("0")) - (read.count("1") < read.count("0"))],
    ),
    "nback": Oracle(
        ours=r"([a-p](?: [a-p])*) =",
        paper=None,
        read=str.split,
        units=len,
        solve=lambda read: read[-3],
    ),
    "mqmtar": Oracle(
        ours=r"(.+?) (\?.+)",
        paper=None,
        read=_stored,
        units=lambda read: read[0],
        solve=lambda read: " ".join(f"? {read[1][key]}" for key in read[2]),
    ),
}
