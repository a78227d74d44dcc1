// Operators of torch.ops.twell, found once by name.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace twell::lm {

template <class Signature>
c10::TypedOperatorHandle<Signature> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace twell::lm
