"""The release of torch that is installed, for tests of what differs between releases."""

import torch

RELEASE = tuple(map(int, torch.__version__.split(".")[:2]))
