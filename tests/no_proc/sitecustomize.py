"""Put this folder on PYTHONPATH to make every read of /proc by lengthwise fail, in this process and its children."""

import os
import sys
from pathlib import Path

_read_text, _readlink = Path.read_text, os.readlink


def _hidden(path: object) -> bool:
    caller = sys._getframe(2).f_code.co_filename
    return str(path).startswith("/proc/") and "lengthwise" in caller


def _no_text(self, *args, **more):
    if _hidden(self):
        raise FileNotFoundError(f"{self} is hidden")
    return _read_text(self, *args, **more)


def _no_link(path, *args, **more):
    if _hidden(path):
        raise FileNotFoundError(f"{path} is hidden")
    return _readlink(path, *args, **more)


Path.read_text, os.readlink = _no_text, _no_link
