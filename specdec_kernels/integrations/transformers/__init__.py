# SPDX-License-Identifier: Apache-2.0
"""Our ops in transformers 5: ``speculative`` decodes for ``generate``; ``patch`` fixes assisted generation itself.

    from specdec_kernels.integrations.transformers import speculative
    model.generate(**inputs, custom_generate=speculative, drafter=draft_model, do_sample=True, seed=1)

transformers is not imported before one of the two is called, and only ``patch`` replaces anything in it.
"""

from specdec_kernels.integrations.transformers.assisted import patch, unpatch
from specdec_kernels.integrations.transformers.custom_generate import speculative

__all__ = ["patch", "speculative", "unpatch"]
