"""Results as files: the rows of a study, a bundle that others can use, the schema of study files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengthwise.display import Display, Part
from lengthwise.folder import Folder
from lengthwise.interface.study import Study
from lengthwise.progress import Say, progress
from lengthwise.spec import SpecError
from lengthwise.study.store import Store

if TYPE_CHECKING:
    from lengthwise.study.fsck import Damage


class WrittenFiles(Display, dict[str, Any]):
    """What was written, in words and as data."""

    def __init__(self, words: str, **facts: object) -> None:
        super().__init__(facts)
        self.words = words

    def display_parts(self, width: int = 80) -> list[Part]:
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


@dataclass(frozen=True, repr=False)
class FsckResult(Display):
    """What is wrong in a store or a bundle."""

    where: str
    found: list[Damage]
    repaired: bool

    def display_parts(self, width: int = 80) -> Iterator[Part]:
        """A line for each damage, then the count."""
        for one in self.found:
            repair = one.repair if self.repaired else f"with --repair: {one.repair}"
            yield Part(f"{one.where}: {one.what}; {repair}", wrap=False)
        many = f"{len(self.found)} {'finding' if len(self.found) == 1 else 'findings'}" if self.found else "no damage"
        yield Part(f"{self.where}: {many}")

    def plain(self) -> dict[str, Any]:
        """The findings as data."""
        return {"where": self.where, "repaired": self.repaired, "found": [vars(one) for one in self.found]}


def fsck(where: str, *, repair: bool = False) -> FsckResult:
    """Read every file of a store or a bundle and compare it with its checksum; list what is wrong.

    With `repair`, damaged runs are set aside so that they are made again, and checksums are added where there are none.

    >>> fsck("lengthwise-store")
    """
    from lengthwise.study.fsck import check_bundle, check_store

    folder = Folder(where)
    if not folder.exists():
        raise SpecError(f"there is no store and no bundle {where!r}")
    if folder.exists("bundle.json"):
        return FsckResult(where, list(check_bundle(folder, repair)), repair)
    if not {"runs", "done", "leases"} & set(folder.names()):
        raise SpecError(f"{where!r} is no store and no bundle: it has no runs and no bundle.json")
    return FsckResult(where, list(check_store(Store(folder), repair)), repair)


def export_bundle(
    store: str,
    to: str | Path,
    *,
    study: str | None = None,
    with_bundles: Sequence[str | Path] = (),
    allow_code: bool = False,
    say: Say | None = None,
) -> WrittenFiles:
    """Write a bundle: rows and run descriptions, without weights, of a store or of one study in it.

    `with_bundles` are bundles whose other runs are written too, e.g. what other machines have done.

    >>> export_bundle("lengthwise-store", "bundle")
    """
    from lengthwise.study.bundle import Bundle
    from lengthwise.study.status import status
    from lengthwise.study.store import Store

    kept, keys, name = Store(store), None, None
    bundles = [Bundle(one) for one in with_bundles]
    if not kept.folder.exists():
        raise SpecError(f"there is no store {store!r}; give the folder that --store named")
    if study is not None:
        asked = Study.read(study, allow_code=allow_code)
        ended = {key: record for bundle in reversed(bundles) for key, record in bundle.ended_records.items()}
        keys, name = [item.key for item in status(asked.planned, kept, ended).items], asked.name
    with progress(say) as tell:
        many = kept.export(to, keys, name, tell, bundles)
    return WrittenFiles(f"{many:,} runs in {to}; study run --with {to} takes them as done", runs=many, folder=str(to))


def study_schema() -> str:
    """Return the JSON schema of a study file, for editors.

    >>> "properties" in study_schema()
    True
    """
    from lengthwise.study.file import schema

    return json.dumps(schema(), indent=2) + "\n"
