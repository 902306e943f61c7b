# SPDX-License-Identifier: Apache-2.0
from .chains import *  # noqa: F403
