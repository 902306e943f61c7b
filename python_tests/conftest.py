# SPDX-License-Identifier: Apache-2.0
import backends
import pytest


@pytest.fixture(params=backends.NAMES)
def backend(request):
    return request.param
