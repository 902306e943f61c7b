# SPDX-License-Identifier: Apache-2.0
from specdec_kernels.registry import DOMAIN_FINAL


def calls(x):
    yield "accept tests", {**x.random(3), "n": 7}
    yield "another domain", {**x.random(3), "n": 300, "domain": DOMAIN_FINAL}
