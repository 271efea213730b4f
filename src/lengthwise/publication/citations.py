"""BibTeX of what is built on: encodings, kinds of positions, tasks, the study, and this project itself.

An entry is found by the arXiv number in a class's `paper`, so a new encoding or task needs one entry here.
"""

from __future__ import annotations

import re

from lengthwise import __version__

YEAR = 2026
"""Of this version of the software."""
URL = ""
"""Where the project lives; empty until that is decided."""
_FIELDS = {  # arXiv number: key, authors, title, year, where it appeared, if not only there
    "1705.03122": (
        "gehring2017convolutional",
        "Gehring, Jonas and Auli, Michael and Grangier, David and Yarats, Denis and Dauphin, Yann N.",
        "Convolutional Sequence to Sequence Learning",
        2017,
        "International Conference on Machine Learning",
    ),
    "1706.03762": (
        "vaswani2017attention",
        "Vaswani, Ashish and Shazeer, Noam and Parmar, Niki and Uszkoreit, Jakob and Jones, Llion and Gomez, Aidan N. "
        "and Kaiser, {\\L}ukasz and Polosukhin, Illia",
        "Attention Is All You Need",
        2017,
        "Advances in Neural Information Processing Systems",
    ),
    "1711.00350": (
        "lake2018generalization",
        "Lake, Brenden and Baroni, Marco",
        "Generalization without Systematicity: On the Compositional Skills of Sequence-to-Sequence Recurrent Networks",
        2018,
        "International Conference on Machine Learning",
    ),
    "1803.02155": (
        "shaw2018self",
        "Shaw, Peter and Uszkoreit, Jakob and Vaswani, Ashish",
        "Self-Attention with Relative Position Representations",
        2018,
        "Conference of the North American Chapter of the Association for Computational Linguistics",
    ),
    "1901.02860": (
        "dai2019transformer",
        "Dai, Zihang and Yang, Zhilin and Yang, Yiming and Carbonell, Jaime and Le, Quoc V. and Salakhutdinov, Ruslan",
        "{Transformer-XL}: Attentive Language Models beyond a Fixed-Length Context",
        2019,
        "Annual Meeting of the Association for Computational Linguistics",
    ),
    "1908.08351": (
        "hupkes2020compositionality",
        "Hupkes, Dieuwke and Dankers, Verna and Mul, Mathijs and Bruni, Elia",
        "Compositionality Decomposed: How do Neural Networks Generalise?",
        2020,
        "Journal of Artificial Intelligence Research",
    ),
    "1910.10683": (
        "raffel2020exploring",
        "Raffel, Colin and Shazeer, Noam and Roberts, Adam and Lee, Katherine and Narang, Sharan and Matena, Michael "
        "and Zhou, Yanqi and Li, Wei and Liu, Peter J.",
        "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
        2020,
        "Journal of Machine Learning Research",
    ),
    "2004.05150": (
        "beltagy2020longformer",
        "Beltagy, Iz and Peters, Matthew E. and Cohan, Arman",
        "Longformer: The Long-Document Transformer",
        2020,
        "",
    ),
    "2010.07515": (
        "hewitt2020rnns",
        "Hewitt, John and Hahn, Michael and Ganguli, Surya and Liang, Percy and Manning, Christopher D.",
        "{RNNs} can generate bounded hierarchical languages with optimal memory",
        2020,
        "Conference on Empirical Methods in Natural Language Processing",
    ),
    "2104.09864": (
        "su2021roformer",
        "Su, Jianlin and Lu, Yu and Pan, Shengfeng and Murtadha, Ahmed and Wen, Bo and Liu, Yunfeng",
        "{RoFormer}: Enhanced Transformer with Rotary Position Embedding",
        2021,
        "",
    ),
    "2106.06981": (
        "weiss2021thinking",
        "Weiss, Gail and Goldberg, Yoav and Yahav, Eran",
        "Thinking Like Transformers",
        2021,
        "International Conference on Machine Learning",
    ),
    "2108.12409": (
        "press2022train",
        "Press, Ofir and Smith, Noah A. and Lewis, Mike",
        "Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation",
        2022,
        "International Conference on Learning Representations",
    ),
    "2203.16634": (
        "haviv2022transformer",
        "Haviv, Adi and Ram, Ori and Press, Ofir and Izsak, Peter and Levy, Omer",
        "Transformer Language Models without Positional Encodings Still Learn Positional Information",
        2022,
        "Findings of the Association for Computational Linguistics: EMNLP 2022",
    ),
    "2205.09921": (
        "chi2022kerple",
        "Chi, Ta-Chung and Fan, Ting-Han and Ramadge, Peter J. and Rudnicky, Alexander I.",
        "{KERPLE}: Kernelized Relative Positional Embedding for Length Extrapolation",
        2022,
        "Advances in Neural Information Processing Systems",
    ),
    "2206.04301": (
        "zhang2022unveiling",
        "Zhang, Yi and Backurs, Arturs and Bubeck, S{\\'e}bastien and Eldan, Ronen and Gunasekar, Suriya "
        "and Wagner, Tal",
        "Unveiling Transformers with {LEGO}: A Synthetic Reasoning Task",
        2022,
        "",
    ),
    "2207.02098": (
        "deletang2023neural",
        "Del{\\'e}tang, Gr{\\'e}goire and Ruoss, Anian and Grau-Moya, Jordi and Genewein, Tim and Wenliang, Li Kevin "
        "and Catt, Elliot and Cundy, Chris and Hutter, Marcus and Legg, Shane and Veness, Joel and Ortega, Pedro A.",
        "Neural Networks and the {Chomsky} Hierarchy",
        2023,
        "International Conference on Learning Representations",
    ),
    "2212.10554": (
        "sun2023length",
        "Sun, Yutao and Dong, Li and Patra, Barun and Ma, Shuming and Huang, Shaohan and Benhaim, Alon and "
        "Chaudhary, Vishrav and Song, Xia and Wei, Furu",
        "A Length-Extrapolatable Transformer",
        2023,
        "Annual Meeting of the Association for Computational Linguistics",
    ),
    "2305.13571": (
        "chi2023latent",
        "Chi, Ta-Chung and Fan, Ting-Han and Chen, Li-Wei and Rudnicky, Alexander I. and Ramadge, Peter J.",
        "Latent Positional Information is in the Self-Attention Variance of Transformer Language Models Without "
        "Positional Embeddings",
        2023,
        "Annual Meeting of the Association for Computational Linguistics",
    ),
    "2305.16843": (
        "ruoss2023randomized",
        "Ruoss, Anian and Del{\\'e}tang, Gr{\\'e}goire and Genewein, Tim and Grau-Moya, Jordi and Csord{\\'a}s, "
        "R{\\'o}bert and Bennani, Mehdi and Legg, Shane and Veness, Joel",
        "Randomized Positional Encodings Boost Length Generalization of Transformers",
        2023,
        "Annual Meeting of the Association for Computational Linguistics",
    ),
    "2305.19466": (
        "kazemnejad2023impact",
        "Kazemnejad, Amirhossein and Padhi, Inkit and Natesan Ramamurthy, Karthikeyan and Das, Payel and Reddy, Siva",
        "The Impact of Positional Encoding on Length Generalization in Transformers",
        2023,
        "Advances in Neural Information Processing Systems",
    ),
    "2306.00946": (
        "liu2023exposing",
        "Liu, Bingbin and Ash, Jordan T. and Goel, Surbhi and Krishnamurthy, Akshay and Zhang, Cyril",
        "Exposing Attention Glitches with Flip-Flop Language Modeling",
        2023,
        "Advances in Neural Information Processing Systems",
    ),
    "2306.15595": (
        "chen2023extending",
        "Chen, Shouyuan and Wong, Sherman and Chen, Liangjian and Tian, Yuandong",
        "Extending Context Window of Large Language Models via Positional Interpolation",
        2023,
        "",
    ),
    "2309.00071": (
        "peng2024yarn",
        "Peng, Bowen and Quesnelle, Jeffrey and Fan, Honglu and Shippole, Enrico",
        "{YaRN}: Efficient Context Window Extension of Large Language Models",
        2024,
        "International Conference on Learning Representations",
    ),
    "2310.04418": (
        "li2024functional",
        "Li, Shanda and You, Chong and Guruganesh, Guru and Ainslie, Joshua and Ontanon, Santiago and Zaheer, "
        "Manzil and Sanghai, Sumit and Yang, Yiming and Kumar, Sanjiv and Bhojanapalli, Srinadh",
        "Functional Interpolation for Relative Positions Improves Long Context Transformers",
        2024,
        "International Conference on Learning Representations",
    ),
    "2312.04927": (
        "arora2024zoology",
        "Arora, Simran and Eyuboglu, Sabri and Timalsina, Aman and Johnson, Isys and Poli, Michael and Zou, James and "
        "Rudra, Atri and R{\\'e}, Christopher",
        "Zoology: Measuring and Improving Recall in Efficient Language Models",
        2024,
        "International Conference on Learning Representations",
    ),
    "2402.01032": (
        "jelassi2024repeat",
        "Jelassi, Samy and Brandfonbrener, David and Kakade, Sham M. and Malach, Eran",
        "Repeat After Me: Transformers are Better than State Space Models at Copying",
        2024,
        "International Conference on Machine Learning",
    ),
    "2405.17399": (
        "mcleish2024transformers",
        "McLeish, Sean and Bansal, Arpit and Stein, Alex and Jain, Neel and Kirchenbauer, John and Bartoldson, "
        "Brian R. and Kailkhura, Bhavya and Bhatele, Abhinav and Geiping, Jonas and Schwarzschild, Avi "
        "and Goldstein, Tom",
        "Transformers Can Do Arithmetic with the Right Embeddings",
        2024,
        "Advances in Neural Information Processing Systems",
    ),
    "2405.18719": (
        "golovneva2024contextual",
        "Golovneva, Olga and Wang, Tianlu and Weston, Jason and Sukhbaatar, Sainbayar",
        "Contextual Position Encoding: Learning to Count What's Important",
        2024,
        "",
    ),
    "2405.20671": (
        "cho2024position",
        "Cho, Hanseul and Cha, Jaeyoung and Awasthi, Pranjal and Bhojanapalli, Srinadh and Gupta, Anupam "
        "and Yun, Chulhee",
        "Position Coupling: Improving Length Generalization of Arithmetic Transformers Using Task Structure",
        2024,
        "Advances in Neural Information Processing Systems",
    ),
    "2410.02140": (
        "huang2025formal",
        "Huang, Xinting and Yang, Andy and Bhattamishra, Satwik and Sarrof, Yash and Krebs, Andreas and Zhou, Hattie "
        "and Nakkiran, Preetum and Hahn, Michael",
        "A Formal Framework for Understanding Length Generalization in Transformers",
        2025,
        "International Conference on Learning Representations",
    ),
    "2410.06205": (
        "barbero2025round",
        "Barbero, Federico and Vitvitskyi, Alex and Perivolaropoulos, Christos and Pascanu, Razvan and "
        "Veli{\\v{c}}kovi{\\'c}, Petar",
        "Round and Round We Go! What makes Rotary Positional Encodings useful?",
        2025,
        "International Conference on Learning Representations",
    ),
    "2410.17980": (
        "tan2025scaling",
        "Tan, Shawn and Yang, Songlin and Courville, Aaron and Panda, Rameswar and Shen, Yikang",
        "Scaling Stick-Breaking Attention: An Efficient Implementation and In-depth Study",
        2025,
        "International Conference on Learning Representations",
    ),
    "2501.18795": (
        "yang2025rope",
        "Yang, Bowen and Venkitesh, Bharat and Talupuru, Dwarak and Lin, Hangyu and Cairuz, David and Blunsom, "
        "Phil and Locatelli, Acyr",
        "{Rope} to {Nope} and Back Again: A New Hybrid Attention Strategy",
        2025,
        "",
    ),
    "2503.02130": (
        "lin2025forgetting",
        "Lin, Zhixuan and Nikishin, Evgenii and He, Xu Owen and Courville, Aaron",
        "Forgetting Transformer: Softmax Attention with a Forget Gate",
        2025,
        "International Conference on Learning Representations",
    ),
}
STUDY = "2305.19466"
"""The study this project re-implements."""
VARIANTS: dict[str, dict[object, str]] = {
    "scaling": {"linear": "Chen et al. 2023, arXiv:2306.15595", "yarn": "Peng et al. 2024, arXiv:2309.00071"},
    "p": {None: "Barbero et al. 2025, arXiv:2410.06205"},
}
"""What an option of rope rests on besides: by its value, or, under none, whatever that is."""
_NUMBER = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def numbers_in(paper: str) -> list[str]:
    """The arXiv numbers that a class's `paper` names."""
    return _NUMBER.findall(paper)


def entry(number: str) -> str | None:
    """The BibTeX of an arXiv number, where it is known."""
    if number not in _FIELDS:
        return None
    key, author, title, year, where = _FIELDS[number]
    if not where:
        return _bibtex("misc", key, author=author, title=title, year=str(year), **_archive(number))
    if where.startswith("Journal"):
        return _bibtex("article", key, author=author, title=title, journal=where, year=str(year), **_archive(number))
    return _bibtex(
        "inproceedings", key, author=author, title=title, booktitle=where, year=str(year), **_archive(number)
    )


def short_entry(paper: str) -> str | None:
    """An entry made of `paper` itself, as `Chi et al. 2022, arXiv:2205.09921`, where there is none in full."""
    found = re.match(r"(\S+)(?: et al\.)? (\d{4}), arXiv:(\d{4}\.\d{4,5})$", paper)
    if found is None:
        return None
    name, year, number = found.groups()
    author = f"{name} and others" if " et al." in paper else name
    return _bibtex("misc", f"{name.lower()}{year}", author=author, year=year, **_archive(number))


def itself() -> str:
    """The BibTeX of this project, as CITATION.cff has it."""
    address = {"url": URL} if URL else {}
    return _bibtex(
        "misc",
        "lengthwise",
        author="{The lengthwise authors}",
        title="lengthwise: positional encodings and length generalization of decoder-only {Transformers}",
        year=str(YEAR),
        note=f"Software, version {__version__}, Apache-2.0",
        **address,
    )


def _archive(number: str) -> dict[str, str]:
    return {"eprint": number, "archiveprefix": "arXiv", "url": f"https://arxiv.org/abs/{number}"}


def _bibtex(kind: str, key: str, **fields: str) -> str:
    width = max(map(len, fields))
    lines = [f"  {name:<{width}} = {{{value}}}," for name, value in fields.items()]
    return "\n".join([f"@{kind}{{{key},", *lines, "}"])
