// SPDX-License-Identifier: Apache-2.0
// Error messages. Each has the op, the argument, what was wanted and what was given.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cctype>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

namespace specdec {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptTensor = std::optional<Tensor>;

// The op whose arguments are checked, and its first argument. All tensors must be on the first one's device.
struct Op {
  const char* name;
  const Tensor& first;
  Op(const char* name, const Tensor& first) : name(name), first(first) {}
};

// The name of an argument in an error: "seed", or with its side "target.top_p"
struct Name {
  const char* text;
  const char* field = nullptr;
  Name(const char* text, const char* field = nullptr) : text(text), field(field) {}
  friend std::ostream& operator<<(std::ostream& out, const Name& name) {
    out << name.text;
    return name.field ? out << '.' << name.field : out;
  }
};

// Raises "op: argument, what was wanted, what was given" if not ok. The message is formatted only then, since a call
// has some twenty checks.
template <class... T>
void check(bool ok, const Op& op, const T&... message) {
  if (ok) return;
  std::ostringstream text;
  (text << op.name << ": " << ... << message);
  throw std::runtime_error(text.str());
}

// Prints a tensor's device, such as "cuda:0".
struct DeviceOfTensor {
  const Tensor& t;
  friend std::ostream& operator<<(std::ostream& text, const DeviceOfTensor& of) {
    if (of.t.is_cpu()) return text << "cpu";
    if (of.t.get_device_index() < 0) return text << "meta";
    return text << (of.t.is_cuda() ? "cuda:" : "device:") << of.t.get_device_index();
  }
};

// Prints a tensor's dtype by its name in Python, such as "int64".
struct DtypeOfTensor {
  const Tensor& t;
  friend std::ostream& operator<<(std::ostream& text, const DtypeOfTensor& of) {
    switch (of.t.scalar_type()) {
      case ScalarType::Char: return text << "int8";
      case ScalarType::Short: return text << "int16";
      case ScalarType::Int: return text << "int32";
      case ScalarType::Long: return text << "int64";
      case ScalarType::Byte: return text << "uint8";
      case ScalarType::Half: return text << "float16";
      case ScalarType::Float: return text << "float32";
      case ScalarType::Double: return text << "float64";
      case ScalarType::ComplexFloat: return text << "complex64";
      case ScalarType::ComplexDouble: return text << "complex128";
      default: break;
    }
    for (const char c : std::string(toString(of.t.scalar_type()))) text << char(std::tolower(c));
    return text;
  }
};

// A wanted size of a shape. With a name it prints as "N=2".
struct Size {
  int64_t n;
  const char* name = nullptr;
  Size(int64_t n) : n(n) {}
  Size(const char* name, int64_t n) : n(n), name(name) {}
  friend std::ostream& operator<<(std::ostream& out, const Size& size) {
    return size.name ? out << size.name << '=' << size.n : out << size.n;
  }
};

// Prints sizes as "[2, 3]". They must outlive the message.
template <class Sizes>
struct Bracketed {
  const Sizes& sizes;
  friend std::ostream& operator<<(std::ostream& text, const Bracketed& of) {
    const char* before = "[";
    for (const auto& n : of.sizes) text << before << n, before = ", ";
    return text << (*before == '[' ? "[]" : "]");
  }
};
template <class Sizes>
Bracketed<Sizes> bracketed(const Sizes& sizes) {
  return {sizes};
}

}  // namespace specdec
