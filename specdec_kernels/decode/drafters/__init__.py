# SPDX-License-Identifier: Apache-2.0
"""Drafters: from models, from looked-up text, and as trees."""
