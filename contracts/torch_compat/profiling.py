"""Whether torch's profiler looks at this thread.

Place: a part of the door; see ``contracts.torch_compat``.
"""

import torch

profiler_is_on = torch._C._autograd._profiler_enabled
"""Asked in every call of a graph, so it is torch's own function, not one that calls it. It is true for as long as
``torch.profiler.profile`` or its predecessor records this thread; torch's threads for the backward inherit that."""
