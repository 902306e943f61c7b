# SPDX-License-Identifier: Apache-2.0
"""The ops under the names and call shapes of the engines that use them."""
