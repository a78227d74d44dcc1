#include "ggml/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "ggml/options.h"
#include "ggml/weights.h"

namespace twell::ggml {
namespace {

constexpr std::size_t kAlignment = 64;

// Addresses for tensors, as ggml wants them. Pages that nobody writes to take no memory: weights
// are packed elsewhere, and only what is no weight is stored here.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes)
      : bytes_(bytes),
        base_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (options().stats) {
      for (const auto& weight : weights_) print(*weight);
    }
    if (base_ != MAP_FAILED) munmap(base_, bytes_);
  }

  void* base() const { return base_ == MAP_FAILED ? nullptr : base_; }
  void clear(int value) { std::memset(base_, value, bytes_); }

  Weight* weight_for(ggml_tensor* tensor) {
    const std::lock_guard lock(mutex_);
    if (tensor->extra == nullptr) {
      weights_.push_back(std::make_unique<Weight>(*tensor));
      tensor->extra = weights_.back().get();
    }
    return static_cast<Weight*>(tensor->extra);
  }

 private:
  static void print(const Weight& weight) {
    const Weight::Counts counts = weight.counts();
    const auto per = [](double sum, std::int64_t n) { return n == 0 ? 0 : sum / double(n); };
    std::fprintf(stderr, "twell: %s: %lld calls of %.3f ms, %lld tokens, %.1f %% fired, %s\n",
                 weight.tensor().name, static_cast<long long>(counts.calls),
                 1e3 * per(counts.seconds, counts.calls), static_cast<long long>(counts.tokens),
                 100 * per(counts.fired, counts.tokens), counts.sparse ? "sparse" : "dense");
  }

  std::size_t bytes_;
  void* base_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Weight>> weights_;
};

// Whether this memory is a file's, mapped to be read: then its pages can be had again.
bool is_read_from_file(std::uintptr_t begin, std::uintptr_t end) {
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen("/proc/self/maps", "r"), std::fclose);
  char line[512];
  while (maps != nullptr && std::fgets(line, sizeof line, maps.get()) != nullptr) {
    unsigned long long first = 0, last = 0, offset = 0, inode = 0;
    char access[8] = {}, device[16] = {};
    // NOLINTNEXTLINE(cert-err34-c): lines that do not fit are skipped
    if (std::sscanf(line, "%llx-%llx %7s %llx %15s %llu", &first, &last, access, &offset, device,
                    &inode) != 6) {
      continue;
    }
    if (begin >= first && begin < last) return end <= last && inode != 0 && access[1] == '-';
  }
  return false;
}

// llama.cpp keeps the file mapped. What was packed would else be in memory twice: 155 of 360 MB of
// a small model.
void drop_pages(const void* data, std::size_t size) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = (at + page - 1) / page * page, end = (at + size) / page * page;
  if (begin >= end || !is_read_from_file(begin, end)) return;
  auto* const first = const_cast<char*>(static_cast<const char*>(data)) + (begin - at);
  madvise(first, end - begin, MADV_DONTNEED);  // advice
}

Buffer& buffer_of(ggml_backend_buffer_t buffer) { return *static_cast<Buffer*>(buffer->context); }

void set_tensor(ggml_backend_buffer_t buffer, ggml_tensor* tensor, const void* data,
                std::size_t offset, std::size_t size) {
  if (buffer->usage != GGML_BACKEND_BUFFER_USAGE_WEIGHTS || tensor->view_src != nullptr ||
      !format_of(tensor->type)) {
    std::memcpy(static_cast<char*>(tensor->data) + offset, data, size);
    return;
  }
  try {
    buffer_of(buffer).weight_for(tensor)->set(data, offset, size);
  } catch (const std::exception& error) {
    GGML_ABORT("twell: %s: %s", tensor->name, error.what());  // as ggml does without memory
  }
  drop_pages(data, size);
}

void get_tensor(ggml_backend_buffer_t /*buffer*/, const ggml_tensor* tensor, void* data,
                std::size_t offset, std::size_t size) {
  const ggml_tensor* const whole = tensor->view_src != nullptr ? tensor->view_src : tensor;
  if (Weight* const weight = weight_of(*whole)) {
    weight->get(data, offset + (whole == tensor ? 0 : tensor->view_offs), size);
  } else {
    std::memcpy(data, static_cast<const char*>(tensor->data) + offset, size);
  }
}

void memset_tensor(ggml_backend_buffer_t buffer, ggml_tensor* tensor, std::uint8_t value,
                   std::size_t offset, std::size_t size) {
  const std::vector<std::uint8_t> bytes(size, value);
  set_tensor(buffer, tensor, bytes.data(), offset, size);
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, std::size_t size) {
  auto buffer = std::make_unique<Buffer>(size);
  if (buffer->base() == nullptr) return nullptr;
  ggml_backend_buffer_i is = {};
  is.free_buffer = [](ggml_backend_buffer_t it) { delete &buffer_of(it); };
  is.get_base = [](ggml_backend_buffer_t it) { return buffer_of(it).base(); };
  is.memset_tensor = memset_tensor;
  is.set_tensor = set_tensor;
  is.get_tensor = get_tensor;
  is.clear = [](ggml_backend_buffer_t it, std::uint8_t value) { buffer_of(it).clear(value); };
  return ggml_backend_buffer_init(type, is, buffer.release(), size);
}

}  // namespace

ggml_backend_buffer_type_t buffer_type(ggml_backend_dev_t device) {
  static ggml_backend_buffer_type type = [] {
    ggml_backend_buffer_type made = {};
    made.iface.get_name = [](ggml_backend_buffer_type_t) { return "TWELL"; };
    made.iface.alloc_buffer = alloc_buffer;
    made.iface.get_alignment = [](ggml_backend_buffer_type_t) { return kAlignment; };
    // Not even though it is in the program's memory: the CPU backend would read packed bytes as
    // blocks, without an error, where it is given a node that is ours.
    made.iface.is_host = [](ggml_backend_buffer_type_t) { return false; };
    return made;
  }();
  if (device != nullptr) type.device = device;
  return &type;
}

bool is_weight(const ggml_tensor& tensor) {
  return tensor.buffer != nullptr && tensor.buffer->buft == buffer_type() &&
         tensor.buffer->usage == GGML_BACKEND_BUFFER_USAGE_WEIGHTS && tensor.view_src == nullptr &&
         format_of(tensor.type).has_value();
}

Weight* weight_of(const ggml_tensor& tensor) {
  return is_weight(tensor) ? static_cast<Weight*>(tensor.extra) : nullptr;
}

}  // namespace twell::ggml
