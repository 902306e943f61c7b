# SPDX-License-Identifier: Apache-2.0
from bench.demo import moved

moved("bench.demo.trees")
