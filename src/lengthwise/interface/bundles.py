"""Results as files: the rows of a study, a bundle that others can use, the schema of study files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lengthwise.display import Display, Part
from lengthwise.folder import Folder
from lengthwise.interface.study import Study
from lengthwise.progress import Say, progress
from lengthwise.spec import SpecError


class WrittenFiles(Display, dict[str, Any]):
    """What was written, in words and as data."""

    def __init__(self, words: str, **facts: object) -> None:
        super().__init__(facts)
        self.words = words

    def parts(self, width: int = 80) -> list[Part]:
        """The words."""
        return [Part(self.words, wrap=False)]

    def plain(self) -> dict[str, Any]:
        """The data."""
        return dict(self)


def write_rows(study: Study, to: str | Path, store: str | None = None, *, say: Say | None = None) -> WrittenFiles:
    """Write the rows of all finished runs of a study into one parquet file.

    >>> study = Study(task="sort:longest=4", encoding="nope", seeds=1, training="laptop:steps=2")
    >>> study.run(executor="inline")
    >>> write_rows(study, "rows.parquet")
    """
    from lengthwise.evaluation.rows import frame_to_parquet

    with progress(say) as tell:
        found = study.rows(store, tell)
    path = Path(to)
    Folder(path.parent).write(path.name, frame_to_parquet(found))
    runs = found["run"].n_unique()
    return WrittenFiles(f"{found.height:,} rows of {runs:,} runs: {to}", rows=found.height, runs=runs, file=str(to))


def export_bundle(
    store: str,
    to: str | Path,
    *,
    study: str | None = None,
    results: str | Path | None = None,
    allow_code: bool = False,
    say: Say | None = None,
) -> WrittenFiles:
    """Write a bundle: rows and run descriptions, without weights, of a store or of one study in it.

    `results` is a bundle whose other runs are written too.

    >>> export_bundle("lengthwise-store", "bundle")
    """
    from lengthwise.study.store import Bundle, Store

    kept, keys, name = Store(store), None, None
    if not kept.folder.exists():
        raise SpecError(f"there is no store {store!r}; give the folder that --store named")
    if study is not None:
        asked = Study.read(study, results=results, allow_code=allow_code)
        keys, name = [item.key for item in asked.items(store)[0]], asked.name
    with progress(say) as tell:
        many = kept.export(to, keys, name, tell, None if results is None else Bundle(results))
    return WrittenFiles(f"{many:,} runs in {to}; study run --with {to} takes them as done", runs=many, folder=str(to))


def study_schema() -> str:
    """Return the JSON schema of a study file, for editors.

    >>> "properties" in study_schema()
    True
    """
    from lengthwise.study.file import schema

    return json.dumps(schema(), indent=2) + "\n"
