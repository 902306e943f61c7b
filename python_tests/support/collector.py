# SPDX-License-Identifier: Apache-2.0
"""The garbage collector, in processes that run many tests."""

import gc


def leave_out_what_is_there():
    """Let the collector leave out all objects of now, which stay, and run less often.

    It took a tenth of the time: a third of a second for each look at all objects, most often in tests of many requests.
    Before the process ends call gc.unfreeze(), or what is never freed is reported at exit.
    """
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    gc.enable()
