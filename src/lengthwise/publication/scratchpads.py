"""Scratchpad formats: exact match of each (Figures E.7 to E.13) and their mean reciprocal ranks (Figures 6 and E.6)."""

from __future__ import annotations

from lengthwise.publication import CODE, PAPER, Table, by_encoding, numbers

FORMATS = {
    "none": "no scratchpad",
    "full": "full",
    "minimal": "minimal",
    "full-input": "full − step input",
    "full-computation": "full − computation",
    "full-output": "full − step output",
    "full-variables": "full − variables",
    "full-remaining": "full − remaining",
}
"""Our name of a format → words."""
_WITHOUT_VARIABLES = ("none", "full", "minimal", "full-input", "full-output", "full-remaining")

_ACCURACY = {  # formats in the order above; nope, t5, alibi, Rotary, sinusoidal
    "addition": (
        ".0845 .0721 .0775 .0004 .0044",
        ".1558 .1623 .1079 .0631 .0747",
        ".1505 .1468 .1377 .0460 .0555",
        ".1562 .1880 .1075 .0555 .0761",
        ".1354 .1298 .0930 .0687 .0735",
        ".1554 .1546 .1015 .0616 .0745",
        ".1615 .1804 .1116 .0695 .0786",
        ".1885 .1755 .0992 .0207 .0200",
    ),
    "polynomial": (
        ".3874 .3599 .6311 .4815 .2129",
        ".2555 .2729 .2752 .1686 .1553",
        ".2705 .2595 .2761 .2638 .1998",
        ".2631 .2692 .2686 .1047 .1512",
        ".2526 .2680 .2817 .1030 .1526",
        ".2300 .2648 .2554 .1361 .1547",
        ".2839 .2685 .2705 .1030 .1685",
        ".1861 .2487 .2749 .1181 .1980",
    ),
    "sort:variant=single": (
        ".9949 .9868 .6232 .4891 .1022",
        ".1289 .1151 .0886 .0063 .0000",
        ".9114 .8745 .5307 .1201 .0000",
        ".1146 .0970 .0912 .0057 .0000",
        ".1162 .1102 .1040 .0031 .0000",
        ".2859 .3026 .1869 .0372 .0000",
    ),
    "sort:variant=multi": (
        ".2641 .3709 .2954 .7509 .1124",
        ".1345 .1493 .1572 .0038 .0033",
        ".2693 .2829 .3006 .3016 .0056",
        ".1318 .1463 .1537 .0128 .0045",
        ".0711 .0894 .1252 .0030 .0018",
        ".1532 .1102 .2113 .1256 .0322",
    ),
    "summation": (
        ".3005 .2195 .2305 .0864 .1090",
        ".3158 .3059 .2329 .0957 .0898",
        ".2340 .2054 .1997 .0887 .0937",
        ".2493 .2696 .1867 .0849 .0895",
        ".2466 .2320 .1872 .0920 .0911",
        ".2930 .2949 .1941 .0846 .0901",
        ".3093 .2756 .1946 .0913 .0890",
        ".2102 .1641 .2047 .0891 .0883",
    ),
    "parity": (
        ".7489 .6807 .6170 .5119 .5294",
        ".5654 .6029 .5622 .4910 .4895",
        ".7074 .6234 .5906 .4853 .5163",
        ".6265 .5621 .5567 .4990 .4711",
        ".5350 .5626 .5799 .3699 .4980",
        ".5659 .6002 .5871 .5052 .4842",
        ".5670 .5718 .5492 .4912 .4918",
        ".6786 .7062 .5884 .5035 .5139",
    ),
    "lego": (
        ".6464 .7053 .7972 .7481 .6103",
        ".5798 .5662 .6702 .4973 .5958",
        ".6557 .6529 .6037 .5138 .5047",
        ".5519 .5368 .6752 .5074 .5755",
        ".6161 .6072 .6693 .5003 .6118",
        ".6581 .6534 .6928 .5197 .5144",
    ),
}
_BY_TASK = {  # formats in the order above
    "addition": ".125 .353 .340 .421 .325 .263 .516 .376",
    "parity": ".675 .188 .468 .194 .260 .276 .180 .477",
    "polynomial": "1 .264 .352 .198 .245 .202 .237 .220",
    "summation": ".671 .569 .254 .223 .210 .313 .286 .191",
    "lego": ".826 .242 .261 .288 - .358 - .476",
    "sort:variant=multi": ".900 .248 .552 .260 - .174 - .316",
}
_BY_ENCODING = (
    ".716 .336 .368 .276 .194 .202 .269 .357",
    ".466 .348 .300 .364 .210 .295 .342 .393",
    ".636 .340 .420 .195 .231 .313 .218 .365",
    ".533 .356 .347 .228 .453 .274 .314 .214",
    ".701 .217 .386 .249 .255 .207 .393 .310",
)


def _formats(line: str) -> dict[str, float]:
    return {name: value for name, value in zip(FORMATS, numbers(line), strict=True) if value is not None}


ACCURACY: dict[str, dict[str, dict[str, float]]] = {
    task: {
        name: by_encoding(line)
        for name, line in zip(FORMATS if len(lines) == len(FORMATS) else _WITHOUT_VARIABLES, lines, strict=True)
    }
    for task, lines in _ACCURACY.items()
}
"""Task → format → encoding → exact match at unseen lengths, mean of three seeds."""
BY_TASK: dict[str, dict[str, float]] = {task: _formats(line) for task, line in _BY_TASK.items()}
"""Task → format → mean reciprocal rank of the format over all encodings (Figure 6)."""
BY_ENCODING: dict[str, dict[str, float]] = dict(zip(by_encoding("0 0 0 0 0"), map(_formats, _BY_ENCODING), strict=True))
"""Encoding → format → mean reciprocal rank of the format over all tasks (Figure E.6)."""

_MERGED = (
    "sort and LEGO: 'full − step input' is two formats under one label, full minus input and full minus computation "
    "(a wrong label in the plotting code): averaged in exact match; in ranks one overwrites the other."
)


def tables() -> list[Table]:
    """Exact match by format, and the two rankings of formats."""
    accuracy: list[dict[str, object]] = [
        {"task": task, "format": name, **values}
        for task, formats in ACCURACY.items()
        for name, values in formats.items()
    ]
    by_task: list[dict[str, object]] = [{"task": task, **values} for task, values in BY_TASK.items()]
    full = sorted(by_task, key=lambda row: -len(row))[0]
    by_task = [{key: row.get(key) for key in full} for row in by_task]
    by_model: list[dict[str, object]] = [{"encoding": name, **values} for name, values in BY_ENCODING.items()]
    return [
        Table(
            "formats",
            "Exact match of scratchpad formats at unseen lengths (trained to 8, tested on 9-16)",
            "exact match of the answer, mean of 3 seeds",
            f"{PAPER}, Figures E.7-E.13; {CODE}: vector figures showcase_final/avg_acc_per_scrhConfig2__*.pdf",
            accuracy,
            (
                _MERGED,
                "polynomial: generation stops at 1,500 tokens with the prompt; full scratchpads of 15 terms and more "
                "need about 1,600 to 1,770 and can never be right.",
            ),
        ),
        Table(
            "by task",
            "Mean reciprocal rank of scratchpad formats per task, over all encodings",
            "mean of 1/rank of the format",
            f"{PAPER}, Figure 6; read from its vector figure in {CODE}",
            by_task,
            (_MERGED, "Sorting of single tokens is not in the figure."),
            digits=3,
        ),
        Table(
            "by encoding",
            "Mean reciprocal rank of scratchpad formats per encoding, over all tasks",
            "mean of 1/rank of the format",
            f"{PAPER}, Figure E.6; read from its vector figure in {CODE}",
            by_model,
            (_MERGED,),
            digits=3,
        ),
    ]
