"""AdamW without the import of PyTorch's compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method inside PyTorch's wrapper; itself in a version that does not wrap it."""
    return getattr(method, "__wrapped__", method)


class AdamW(torch.optim.AdamW):
    """PyTorch's AdamW. Its methods import torch._dynamo, which takes two seconds in each process that trains.

    They do so only to stay out of compiled graphs. No optimizer is compiled here, so they are called as they are.
    """

    add_param_group = _plain(torch.optim.Optimizer.add_param_group)
    zero_grad = _plain(torch.optim.Optimizer.zero_grad)
    state_dict = _plain(torch.optim.Optimizer.state_dict)
    load_state_dict = _plain(torch.optim.Optimizer.load_state_dict)
    # PyTorch wraps `step` for its profiler when the first optimizer of a class is made. Here it is wrapped at once:
    # the check of the leaderboard refuses an entry if a function changes while it runs.
    step = torch.optim.Optimizer.profile_hook_step(torch.no_grad()(_plain(torch.optim.AdamW.step)))
    vars(step)["hooked"] = True
