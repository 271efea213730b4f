"""What holds for all tests: one thread, because the models are tiny and two would only wait for each other."""

import torch

torch.set_num_threads(1)
