# SPDX-License-Identifier: Apache-2.0
"""transformers 5 on our ops: ``speculative`` decodes for ``generate``, ``patch`` mends its own assisted generation.

    from specdec_kernels.integrations.transformers import speculative
    model.generate(**inputs, custom_generate=speculative, drafter=draft_model, do_sample=True, seed=1)

Nothing is imported of transformers before one of them is called, and nothing of it is replaced but by ``patch``.
"""

from specdec_kernels.integrations.transformers.assisted import patch, unpatch
from specdec_kernels.integrations.transformers.custom_generate import speculative

__all__ = ["patch", "speculative", "unpatch"]
