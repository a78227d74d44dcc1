// What ggml sees of this library: a registry with one device, an accelerator beside the CPU, which
// makes backends.
#include <ggml-backend-impl.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "ggml/buffer.h"
#include "ggml/compute.h"
#include "ggml/host.h"
#include "ggml/ledger.h"
#include "ggml/options.h"

namespace twell::ggml {
namespace {

Compute& compute_of(ggml_backend_t backend) { return *static_cast<Compute*>(backend->context); }

// Two devices that differ in their default buffer type. llama.cpp takes weights into that of the
// device which is registered, so it is ours. It puts what is between operations into that of a
// backend's device: the second, unregistered one has the CPU's. So both backends share one buffer,
// and nothing is copied between them.
ggml_backend_device& device(bool registered);

ggml_backend_t init_backend(ggml_backend_dev_t /*device*/, const char* /*parameters*/) {
  static ggml_guid guid = {'t', 'w', 'e', 'l', 'l', '-', 'd', 'o',
                           'w', 'n', '-', 'g', 'g', 'm', 'l', '1'};
  ggml_backend_i is = {};
  is.get_name = [](ggml_backend_t) { return "TWELL"; };
  is.free = [](ggml_backend_t backend) {
    delete &compute_of(backend);
    delete backend;
  };
  is.graph_compute = [](ggml_backend_t backend, ggml_cgraph* graph) {
    return compute_of(backend).run(graph);
  };
  Ledger::get().print();  // backends are made when the weights are there
  return new ggml_backend{&guid, is, &device(false), new Compute};
}

ggml_backend_device_i device_functions() {
  ggml_backend_device_i is = {};
  is.get_name = [](ggml_backend_dev_t) { return "TWELL"; };
  is.get_description = [](ggml_backend_dev_t) { return "sparse feed-forward layers on the CPU"; };
  is.get_memory = [](ggml_backend_dev_t, std::size_t* free, std::size_t* total) {
    *free = *total = 0;  // the CPU's
  };
  is.get_type = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_ACCEL; };
  is.get_props = [](ggml_backend_dev_t it, ggml_backend_dev_props* props) {
    *props = {};
    props->name = ggml_backend_dev_name(it);
    props->description = ggml_backend_dev_description(it);
    props->type = ggml_backend_dev_type(it);
  };
  is.init_backend = init_backend;
  is.get_buffer_type = [](ggml_backend_dev_t it) {
    return it == &device(true) ? buffer_type()
                               : ggml_backend_dev_buffer_type(
                                     ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
  };
  is.supports_op = [](ggml_backend_dev_t, const ggml_tensor* op) { return supports(*op); };
  is.supports_buft = [](ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
    return type == buffer_type() || ggml_backend_buft_is_host(type);
  };
  return is;
}

ggml_backend_device& device(bool registered) {
  static ggml_backend_device weights = {device_functions(), nullptr, nullptr};
  static ggml_backend_device between = {device_functions(), nullptr, nullptr};
  return registered ? weights : between;
}

void set_threads(ggml_backend_t backend, int threads) { compute_of(backend).set_threads(threads); }

ggml_backend_reg_t registry() {
  static ggml_backend_reg one = [] {
    ggml_backend_reg made = {GGML_BACKEND_API_VERSION, {}, nullptr};
    made.iface.get_name = [](ggml_backend_reg_t) { return "TWELL"; };
    made.iface.get_device_count = [](ggml_backend_reg_t) -> std::size_t {
      return options().off ? 0 : 1;
    };
    made.iface.get_device = [](ggml_backend_reg_t, std::size_t) { return &device(true); };
    made.iface.get_proc_address = [](ggml_backend_reg_t, const char* name) -> void* {
      const bool threads = std::strcmp(name, "ggml_backend_set_n_threads") == 0;
      return threads ? reinterpret_cast<void*>(&set_threads) : nullptr;
    };
    return made;
  }();
  device(true).reg = device(false).reg = &one;
  buffer_type(&device(true));
  return &one;
}

}  // namespace
}  // namespace twell::ggml

extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init() {
  const std::string why = twell::ggml::host_differs();
  if (!why.empty()) {
    std::fprintf(stderr, "twell: not used: %s; build it against this program's llama.cpp\n",
                 why.c_str());
    return nullptr;
  }
  return twell::ggml::registry();
}
