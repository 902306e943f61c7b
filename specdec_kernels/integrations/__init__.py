# SPDX-License-Identifier: Apache-2.0
"""The ops with the names and signatures of inference engines' own functions, and plugins that replace those."""
