# SPDX-License-Identifier: Apache-2.0
"""What is decoded with: adapters, caches, and a lean Llama for CPUs."""
