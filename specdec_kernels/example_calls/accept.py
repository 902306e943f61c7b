# SPDX-License-Identifier: Apache-2.0


def calls(x):
    yield "probabilities", {"p": x.probs(3), "q": x.probs(3), "u": x.uniforms(3, x.V)}
    yield "ids of one-hot drafts", {"p": x.probs(3), "q": x.integers(-1, 9, 3, x.V), "u": x.uniforms(3, x.V)}
