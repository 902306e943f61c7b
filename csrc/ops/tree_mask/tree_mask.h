// SPDX-License-Identifier: Apache-2.0
// The attention mask for a tree of tokens: every node attends to itself and to its ancestors. The root and its
// descendants also attend to the prefix; padding does not. The mask is made in two steps. The first writes each node's
// ancestors as bits: node j is bit j % 32 of word j / 32. The second makes the mask from these bits.
#pragma once

#include <type_traits>

#include "../../core/arguments.h"

namespace specdec {

enum MaskFormat : int32_t {
  kMaskBool,
  kMaskFloat32,
  kMaskFloat64,
  kMaskBFloat16,
  kMaskFloat16,
  kMaskUint8,
  kMaskUint32,
  kMaskUint64,
  kMaskFormats
};

constexpr int32_t kBadParent = 1;    // a parent outside [-1, node): the node counts as padding
constexpr int32_t kBadPosition = 2;  // a prefix_len or tree_start outside [0, 2^62): it counts as 0

SPECDEC_HD constexpr bool is_length(int64_t n) {
  return n >= 0 && n >> 62 == 0;
}  // so that the position of a node fits an int64

SPECDEC_HD constexpr bool is_element(MaskFormat f) { return f <= kMaskFloat16; }
SPECDEC_HD constexpr int element_bytes(MaskFormat f) {
  return f == kMaskBool ? 1 : f == kMaskFloat32 ? 4 : f == kMaskFloat64 ? 8 : 2;
}

// a / b for a, b >= 0. 64-bit division is slow, on GPUs most of all.
SPECDEC_HD int64_t quotient(int64_t a, int64_t b) {
  return (a | b) >> 32 == 0 ? int64_t(uint32_t(a) / uint32_t(b)) : a / b;
}

// A mask of the lowest n of 32 bits, n clamped to [0, 32]
SPECDEC_HD uint32_t lowest(int64_t n) { return n <= 0 ? 0u : n >= 32 ? ~0u : (1u << n) - 1u; }

// Word w (32 bits) of 16 bytes of the mask. Element i of these 16 bytes shows bit i of `seen`: a bool is the bit
// itself, a float is 0 for a set bit and -inf for a clear one.
SPECDEC_HD uint32_t elements(MaskFormat f, uint32_t seen, int w) {
  switch (f) {
    case kMaskBool: return (seen >> 4 * w & 15u) * 0x00204081u & 0x01010101u;
    case kMaskFloat32: return seen >> w & 1u ? 0u : 0xff800000u;
    case kMaskFloat64: return w % 2 == 0 || seen >> w / 2 & 1u ? 0u : 0xfff00000u;
    default: {
      const uint32_t hidden = f == kMaskBFloat16 ? 0xff80u : 0xfc00u;
      return (seen >> 2 * w & 1u ? 0u : hidden) | (seen >> (2 * w + 1) & 1u ? 0u : hidden << 16);
    }
  }
}

struct TreeMask {
  int64_t B = 0, N = 0, keys = 0;
  bool nodes_only = true;       // the keys are the nodes
  Ints parents;                 // [B, N]
  int64_t strides[2] = {};      // of parents
  Ints prefix_len, tree_start;  // [B]; prefix_len null: 0; tree_start null: right after the prefix
  MaskFormat format = kMaskBool;
  int64_t W = 0;                  // words of a row of `ancestors`
  uint32_t* ancestors = nullptr;  // [B, N, W]; `mask` itself, if the mask has just these words
  void* mask = nullptr;
  int32_t* depth = nullptr;      // [B, N]
  int64_t* positions = nullptr;  // [B, N]
  int32_t* status = nullptr;     // [B]

  SPECDEC_HD int64_t given_parent(int64_t b, int64_t i) const { return parents.at(b * strides[0] + i * strides[1]); }
  SPECDEC_HD bool bad_parent(int64_t b, int64_t i) const { return given_parent(b, i) < -1 || given_parent(b, i) >= i; }
  // The parent of node i; -1 for the root and for padding
  SPECDEC_HD int64_t parent(int64_t b, int64_t i) const {
    const int64_t p = given_parent(b, i);
    return p < i && p >= 0 ? p : -1;
  }

  SPECDEC_HD bool bad_position(int64_t b) const {
    return (prefix_len && !is_length(prefix_len[b])) || (tree_start && !is_length(tree_start[b]));
  }
  SPECDEC_HD int64_t prefix(int64_t b) const { return prefix_len && is_length(prefix_len[b]) ? prefix_len[b] : 0; }
  SPECDEC_HD int64_t start(int64_t b) const {
    return !tree_start ? prefix(b) : is_length(tree_start[b]) ? tree_start[b] : 0;
  }

  SPECDEC_HD void put_node(int64_t b, int64_t i, int32_t d) const {
    depth[b * N + i] = d;
    positions[b * N + i] = prefix(b) + d;
  }

  // Bits [t, t + 32) of a row of ancestors; bits outside the row are 0.
  SPECDEC_HD uint32_t node_bits(int64_t row, int64_t t) const {
    const int64_t w = t >> 5;
    const int shift = int(t & 31);
    const uint32_t low = w >= 0 && w < W ? ancestors[row * W + w] : 0u;
    if (shift == 0) return low;
    const uint32_t high = w + 1 >= 0 && w + 1 < W ? ancestors[row * W + w + 1] : 0u;
    return low >> shift | high << (32 - shift);
  }

  // Bits for the keys [j, j + 32) of row b * N + i (node i of request b). For the keys of the tree, they are the
  // ancestors; for others, the prefix, which the root and its descendants attend to.
  SPECDEC_HD uint32_t key_bits(int64_t row, int64_t j) const {
    if (nodes_only) return node_bits(row, j);
    const int64_t b = quotient(row, N), t = j - start(b);
    const uint32_t tree = lowest(N - t) & ~lowest(-t);
    const uint32_t committed = ancestors[row * W] & 1u ? lowest(prefix(b) - j) : 0u;
    return (node_bits(row, t) & tree) | (committed & ~tree);
  }

  // n <= 32 bits, starting at key j of `row` and continuing in the next rows up to row `end`
  SPECDEC_HD uint32_t run(int64_t row, int64_t j, int n, int64_t end) const {
    uint32_t bits = 0;
    for (int done = 0; done < n && row < end; ++row, j = 0) {
      const int more = keys - j < n - done ? int(keys - j) : n - done;
      bits |= (key_bits(row, j) & lowest(more)) << done;
      done += more;
    }
    return bits;
  }

  // The mask is written in units. A unit is 16 bytes of elements, 4 bytes of one request if the format is kMaskUint8,
  // or a 32-bit word if it is kMaskUint32 or kMaskUint64.
  SPECDEC_HD int64_t packed_words() const {
    return format == kMaskUint64 ? (keys + 63) / 64 * 2 : (keys + 31) / 32;
  }  // words of one row
  SPECDEC_HD int64_t packed_bytes() const { return (N * keys + 7) / 8; }  // of one request
  SPECDEC_HD int64_t units() const {
    if (format == kMaskUint8) return B * ((packed_bytes() + 3) / 4);
    if (!is_element(format)) return B * N * packed_words();
    return (B * N * keys * element_bytes(format) + 15) / 16;
  }

  // kFormat must be this->format, or kMaskUint32 for kMaskUint64: its words are pairs of 32 bits.
  template <MaskFormat kFormat>
  SPECDEC_HD void put_unit(int64_t unit) const {
    if constexpr (kFormat == kMaskUint8) {
      const int64_t bytes = packed_bytes(), of_request = (bytes + 3) / 4, b = quotient(unit, of_request);
      const int64_t byte = 4 * (unit - b * of_request), row = quotient(8 * byte, keys);
      const uint32_t seen = run(b * N + row, 8 * byte - row * keys, 32, (b + 1) * N);
      uint8_t* out = static_cast<uint8_t*>(mask) + b * bytes + byte;
      if (bytes % 4 == 0) {
        *reinterpret_cast<uint32_t*>(out) = seen;
      } else {
        for (int i = 0; i < 4 && byte + i < bytes; ++i) out[i] = uint8_t(seen >> 8 * i);
      }
    } else if constexpr (!is_element(kFormat)) {
      const int64_t words = packed_words(), row = quotient(unit, words), j = 32 * (unit - row * words);
      static_cast<uint32_t*>(mask)[unit] = key_bits(row, j) & lowest(keys - j);
    } else {
      constexpr int bytes = element_bytes(kFormat), n = 16 / bytes;
      const int64_t rows = B * N, e = unit * n, row = quotient(e, keys);
      const uint32_t seen = run(row, e - row * keys, n, rows);
      uint32_t* out = static_cast<uint32_t*>(mask) + 4 * unit;
      const int64_t left = rows * keys - e;
      if (left >= n) {
        put_16_bytes(out, elements(kFormat, seen, 0), elements(kFormat, seen, 1), elements(kFormat, seen, 2),
                     elements(kFormat, seen, 3));
      } else {
        for (int i = 0; i < left * bytes; ++i)
          reinterpret_cast<uint8_t*>(out)[i] = uint8_t(elements(kFormat, seen, i / 4) >> i % 4 * 8);
      }
    }
  }

  SPECDEC_HD static void put_16_bytes(uint32_t* out, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
#if defined(__CUDA_ARCH__)
    *reinterpret_cast<uint4*>(out) = make_uint4(a, b, c, d);
#else
    out[0] = a, out[1] = b, out[2] = c, out[3] = d;
#endif
  }
};

// Whether the second step, from the ancestors' bits to the mask, is needed
inline bool has_units(const TreeMask& a) { return a.mask != a.ancestors && a.units() > 0; }

// Calls f with the format as a std::integral_constant, so that f's loop over units is compiled for each format.
template <class F>
void with_format(MaskFormat format, const F& f) {
  switch (format) {
    case kMaskBool: return f(std::integral_constant<MaskFormat, kMaskBool>());
    case kMaskFloat32: return f(std::integral_constant<MaskFormat, kMaskFloat32>());
    case kMaskFloat64: return f(std::integral_constant<MaskFormat, kMaskFloat64>());
    case kMaskBFloat16: return f(std::integral_constant<MaskFormat, kMaskBFloat16>());
    case kMaskFloat16: return f(std::integral_constant<MaskFormat, kMaskFloat16>());
    case kMaskUint8: return f(std::integral_constant<MaskFormat, kMaskUint8>());
    default: return f(std::integral_constant<MaskFormat, kMaskUint32>());  // words of 64 bits are pairs of 32
  }
}

}  // namespace specdec
