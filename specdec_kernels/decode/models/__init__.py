# SPDX-License-Identifier: Apache-2.0
"""Models for the loop: adapters, caches, and a lean Llama for CPUs."""
