#include <ggml-backend-impl.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <cstring>

#include "ggml/host.h"
#include "twell/status.h"

namespace twell::ggml {
namespace {

// The host's CPU; it is there before any backend of ours.
ggml_backend_dev_t cpu_device() {
  ggml_backend_dev_t const device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (device == nullptr) {
    throw Error(ErrorKind::environment, "twell", "this program has no CPU backend of ggml");
  }
  return device;
}

template <class Function>
Function function_of_cpu(const char* name) {
  return reinterpret_cast<Function>(
      ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu_device()), name));
}

bool find_openmp() {
  const auto features = function_of_cpu<ggml_backend_get_features_t>("ggml_backend_get_features");
  if (features == nullptr) return false;
  const ggml_backend_feature* at = features(ggml_backend_dev_backend_reg(cpu_device()));
  for (; at != nullptr && at->name != nullptr; ++at) {
    if (std::strcmp(at->name, "OPENMP") == 0) return std::strcmp(at->value, "0") != 0;
  }
  return false;
}

}  // namespace

bool host_has_openmp() {
  static const bool has = find_openmp();
  return has;
}

HostWeight::HostWeight(const ggml_tensor& like, const void* blocks)
    : context_(ggml_init({4 * ggml_tensor_overhead(), nullptr, true})) {
  tensor_ = ggml_new_tensor(context_.get(), like.type, GGML_MAX_DIMS, like.ne);
  ggml_set_name(tensor_, like.name);
  buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(
      context_.get(), ggml_backend_dev_buffer_type(cpu_device())));
  if (buffer_ == nullptr) {
    throw Error(ErrorKind::out_of_memory, "twell",
                std::string("ggml gives no memory for ") + like.name);
  }
  ggml_backend_buffer_set_usage(buffer_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  ggml_backend_tensor_set(tensor_, blocks, 0, ggml_nbytes(tensor_));
}

HostCpu::~HostCpu() {
  cpu_.reset();
  if (pool_ != nullptr) {
    function_of_cpu<decltype(&ggml_threadpool_free)>("ggml_threadpool_free")(pool_);
  }
}

void HostCpu::start() {
  constexpr std::size_t kNodes = 8;
  context_.reset(ggml_init({ggml_graph_overhead_custom(kNodes, false), nullptr, true}));
  graph_ = ggml_new_graph_custom(context_.get(), kNodes, false);
  cpu_.reset(ggml_backend_dev_init(cpu_device(), nullptr));
  if (cpu_ == nullptr) {
    throw Error(ErrorKind::environment, "twell", "the CPU backend of ggml does not start");
  }
}

// Without OpenMP a graph that names no pool starts and joins threads of its own.
void HostCpu::take_threads(int threads) {
  threads_ = threads;
  function_of_cpu<ggml_backend_set_n_threads_t>("ggml_backend_set_n_threads")(cpu_.get(), threads);
  if (host_has_openmp()) return;
  const auto make = function_of_cpu<decltype(&ggml_threadpool_new)>("ggml_threadpool_new");
  const auto free = function_of_cpu<decltype(&ggml_threadpool_free)>("ggml_threadpool_free");
  const auto set = function_of_cpu<decltype(&ggml_backend_cpu_set_threadpool)>(
      "ggml_backend_cpu_set_threadpool");
  if (make == nullptr || free == nullptr || set == nullptr) return;
  ggml_threadpool_params params = ggml_threadpool_params_default(threads);
  ggml_threadpool* const pool = make(&params);
  set(cpu_.get(), pool);
  if (pool_ != nullptr) free(pool_);
  pool_ = pool;
}

ggml_status HostCpu::compute(const ggml_tensor& node, const HostWeight& weight, int threads) {
  if (cpu_ == nullptr) start();
  if (threads != threads_) take_threads(threads);
  ggml_tensor product = node;
  product.src[0] = weight.tensor();
  ggml_graph_clear(graph_);
  ggml_graph_add_node(graph_, &product);
  return ggml_backend_graph_compute(cpu_.get(), graph_);
}

}  // namespace twell::ggml
