# SPDX-License-Identifier: Apache-2.0
"""What drafts: models, looked-up text, trees of either."""
