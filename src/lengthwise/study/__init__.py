"""Studies of many runs: the study `file`, its `plan`, the `store` of results, the `drive`r and the `executors`."""

from lengthwise.study.bundle import Bundle
from lengthwise.study.file import StudyFile
from lengthwise.study.plan import Planned
from lengthwise.study.store import Store

__all__ = ["Bundle", "Planned", "Store", "StudyFile"]
