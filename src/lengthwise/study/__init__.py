"""Many runs: a study's `file`, its `plan`, the `store` of what is done, the `drive`r and the `executors` that do it."""

from lengthwise.study.file import StudyFile
from lengthwise.study.plan import Planned
from lengthwise.study.store import Bundle, Store

__all__ = ["Bundle", "Planned", "Store", "StudyFile"]
