// SPDX-License-Identifier: Apache-2.0
// The harness's Python module. Addresses are passed as integers, which control.py gets from tensors and arrays.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "grid.h"
#include "memory.h"
#include "watch.h"

namespace py = pybind11;

void run_sample(const std::string& kernel, int defect, int blocks, const void* in, int n, void* out, void* scratch);

namespace {

py::dict counts() {
  py::dict all;
  for (const auto& [name, w] : cuda_on_cpu::watches.all()) {
    py::dict one;
    one["read"] = w.read, one["distinct"] = w.distinct, one["loads"] = w.loads, one["written"] = w.written,
    one["outside"] = w.outside;
    all[name.c_str()] = one;
  }
  return all;
}

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

PYBIND11_MODULE(SPECDEC_MODULE, m) {
  m.attr("checked") = cuda_on_cpu::memory_checked();
  m.def("set_schedule", &cuda_on_cpu::set_schedule, py::arg("name"), py::arg("seed") = 1);
  m.def("set_block_order", &cuda_on_cpu::set_block_order, py::arg("name"), py::arg("seed") = 1);
  m.def(
      "set_device",
      [](int multiprocessors, int major, int minor, int shared, bool clusters, const std::vector<int>& groups) {
        cuda_on_cpu::device = {multiprocessors, major, minor, shared, clusters, groups};
      },
      py::arg("multiprocessors"), py::arg("major"), py::arg("minor"), py::arg("shared") = 227 * 1024,
      py::arg("clusters") = true, py::arg("groups") = std::vector<int>());
  m.def("set_race_check", &cuda_on_cpu::set_race_check);
  m.def("launches", [] {
    py::list all;
    for (const auto& l : cuda_on_cpu::launches()) all.append(py::make_tuple(l.kernel, l.blocks));
    return all;
  });
  m.def("began_early", [] {
    py::list all;
    for (const auto& l : cuda_on_cpu::launches())
      if (l.after == cuda_on_cpu::After::the_beginning) all.append(l.kernel);
    return all;
  });
  m.def("instances", [] {
    py::dict all;
    for (const auto* i : cuda_on_cpu::instances()) all[i->name.c_str()] = i->launches;
    return all;
  });
  m.def("watch", [](const std::string& name, std::vector<uintptr_t> rows, size_t row_bytes) {
    cuda_on_cpu::watches.add(name, std::move(rows), row_bytes);
  });
  m.def("counts", &counts);
  m.def("reset", [] {
    cuda_on_cpu::watches.zero();
    cuda_on_cpu::forget_launches();
  });
  m.def("forget", [] { cuda_on_cpu::watches.clear(); });
  m.def("run_sample",
        [](const std::string& kernel, int defect, int blocks, uintptr_t in, int n, uintptr_t out, uintptr_t scratch) {
          const py::gil_scoped_release release;
          run_sample(kernel, defect, blocks, pointer(in), n, pointer(out), pointer(scratch));
        });
}
