// Structs of ggml change between releases without a change of GGML_BACKEND_API_VERSION, and the
// fields that functions read here would lie elsewhere. So the version must be the same, and what
// two small tensors and a graph made by the host show must be what the headers say.
#include <ggml-backend-impl.h>
#include <ggml.h>

#include <cstring>
#include <string>

#include "ggml/host.h"

namespace twell::ggml {
namespace {

// Where a tensor's fields are, seen from outside: functions of the host return or set them.
std::string layout_differs(ggml_context* context) {
  ggml_tensor* const a = ggml_new_tensor_2d(context, GGML_TYPE_Q8_0, 64, 3);
  ggml_tensor* const b = ggml_new_tensor_2d(context, GGML_TYPE_F32, 64, 5);
  ggml_tensor* const product = ggml_mul_mat(context, a, b);
  ggml_set_name(a, "weight");
  ggml_set_input(b);
  const auto* const at = reinterpret_cast<const char*>(a);
  if (ggml_get_name(a) - at != offsetof(ggml_tensor, name)) return "a tensor's name lies elsewhere";
  if (a->type != GGML_TYPE_Q8_0 || b->type != GGML_TYPE_F32) return "types have other numbers";
  if (a->ne[0] != 64 || a->ne[1] != 3 || a->nb[1] != 68 || b->nb[1] != 256) {
    return "a tensor's shape lies elsewhere";
  }
  if (product->op != GGML_OP_MUL_MAT || product->src[0] != a || product->src[1] != b) {
    return "a node's sources lie elsewhere";
  }
  if ((b->flags & GGML_TENSOR_FLAG_INPUT) == 0) return "a tensor's flags lie elsewhere";
  if (std::strcmp(ggml_op_name(GGML_OP_MUL_MAT_ID), "MUL_MAT_ID") != 0) {
    return "operations have other numbers";
  }
  return {};
}

// A buffer of the host: its fields as functions set them.
std::string buffer_differs() {
  ggml_backend_buffer_type type = {};
  type.iface.get_name = [](ggml_backend_buffer_type_t) { return "twell"; };
  type.iface.get_alignment = [](ggml_backend_buffer_type_t) -> std::size_t { return 64; };
  if (std::strcmp(ggml_backend_buft_name(&type), "twell") != 0 ||
      ggml_backend_buft_get_alignment(&type) != 64) {
    return "a buffer type's functions lie elsewhere";
  }
  ggml_backend_buffer_t const buffer = ggml_backend_buffer_init(&type, {}, &type, 128);
  ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  const bool same = buffer->buft == &type && buffer->context == &type && buffer->size == 128 &&
                    buffer->usage == GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
  ggml_backend_buffer_free(buffer);
  return same ? "" : "a buffer's fields lie elsewhere";
}

}  // namespace

std::string host_differs() {
  // The size of ggml_object, which stands before each tensor and is in no header.
  constexpr std::size_t kObject = 32;
  if (std::strcmp(ggml_version(), TWELL_GGML_VERSION) != 0) {
    return std::string("it was built for ggml ") + TWELL_GGML_VERSION + ", and this program has " +
           ggml_version();
  }
  if (ggml_tensor_overhead() != kObject + sizeof(ggml_tensor)) {
    return "this program's tensors have " + std::to_string(ggml_tensor_overhead() - kObject) +
           " bytes, expected " + std::to_string(sizeof(ggml_tensor));
  }
  const ggml_context_ptr context(ggml_init({4 * ggml_tensor_overhead(), nullptr, true}));
  if (context == nullptr) return "ggml_init() gives no memory";
  std::string why = layout_differs(context.get());
  return why.empty() ? buffer_differs() : why;
}

}  // namespace twell::ggml
