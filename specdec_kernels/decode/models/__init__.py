# SPDX-License-Identifier: Apache-2.0
"""Models for the decode loop: adapters, caches, and a lean Llama for CPUs."""
