// SPDX-License-Identifier: Apache-2.0
// Call verify_chain from C++ without Python: load the library, and call the op through torch's dispatcher.
//
//   T=$(python -c "import torch; print(*torch.__path__)")
//   g++ -std=c++20 examples/cpp/verify_chain.cpp -I$T/include -L$T/lib -Wl,-rpath,$T/lib -ltorch_cpu -lc10 -o chain
//   ./chain specdec_kernels/_C.so
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>

#include <iostream>

int main(int, char** argv) {
  if (!dlopen(argv[1], RTLD_NOW)) return std::cerr << dlerror() << '\n', 1;
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("specdec::verify_chain", "");
  const at::Tensor p = at::tensor({.5f, .3f, .2f}).log(), q = at::tensor({.2f, .5f, .3f}).log();
  std::unordered_map<std::string, c10::IValue> given;  // one request with two drafts; keys are the schema's names
  given["target_logits"] = p.expand({1, 3, 3}), given["draft_logits"] = q.expand({1, 2, 3});
  given["draft_tokens"] = at::tensor({1, 0}).view({1, 2}), given["max_draft"] = 2;
  given["target_kind"] = given["draft_kind"] = given["method"] = 0;  // logits, logits, token by token
  given["uniforms"] = at::tensor({.5, .9, .1}).view({1, 3});
  torch::jit::Stack stack;  // all arguments in order; those not given are their defaults, or None
  for (const auto& argument : op.schema().arguments())
    stack.push_back(given.count(argument.name()) ? given[argument.name()]
                                                 : argument.default_value().value_or(c10::IValue()));
  op.callBoxed(&stack);
  std::cout << "tokens" << stack[0].toTensor() << "\naccepted" << stack[1].toTensor() << '\n';
}
