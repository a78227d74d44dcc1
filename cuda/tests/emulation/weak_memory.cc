#include "cuda/tests/emulation/weak_memory.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace twell::emulation {
namespace {

WeakMemory* active = nullptr;  // for the signal's handler; kernels do not start kernels
struct sigaction earlier;

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// Bytes until the page's end.
std::size_t to_page_end(const std::byte* at) {
  return page_bytes() - reinterpret_cast<std::uintptr_t>(at) % page_bytes();
}

void protect(std::byte* first, std::size_t bytes, int access) {
  // The memory is the heap's: POSIX does not promise this, Linux does.
  if (mprotect(first, bytes, access) != 0) abort();
}

}  // namespace

WeakMemory::WeakMemory(const DeviceMemory& memory) {
  for (const auto& [first, allocation] : memory) {
    bytes_ = (bytes_ + 15) / 16 * 16;  // atomics act on the truth: aligned as the memory is
    for (std::size_t done = 0; done < allocation.bytes;) {
      std::byte* at = first + done;
      const std::size_t bytes = std::min(to_page_end(at), allocation.bytes - done);
      // Parts of pages stay writable: other data of the process may lie beside them.
      chunks_.push_back({at, bytes, bytes_, bytes == page_bytes()});
      bytes_ += bytes;
      done += bytes;
    }
  }
  truth_ = std::make_unique_for_overwrite<std::byte[]>(bytes_);
  initial_ = std::make_unique_for_overwrite<std::byte[]>(bytes_);
  open_.reserve(chunks_.size());  // the handler must not allocate
  for (Chunk& chunk : chunks_) {
    std::memcpy(&truth_[chunk.place], chunk.at, chunk.bytes);
    if (!chunk.guarded) loose_.push_back(&chunk);
  }
  active = this;
  struct sigaction action = {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = [](int, siginfo_t* info, void*) {
    Chunk* chunk = active->find(info->si_addr);
    if (chunk != nullptr && chunk->guarded && !chunk->open) {
      active->open(*chunk);
    } else {
      sigaction(SIGSEGV, &earlier, nullptr);  // not ours: the access faults again
    }
  };
  sigaction(SIGSEGV, &action, &earlier);
  protect_all(PROT_READ);
}

WeakMemory::~WeakMemory() {
  protect_all(PROT_READ | PROT_WRITE);
  sigaction(SIGSEGV, &earlier, nullptr);
  active = nullptr;
  for (const auto& [place, value] : unpublished_) truth_[place] = value;
  for (const Chunk* chunk : touched_) {
    std::memcpy(chunk->at, &truth_[chunk->place], chunk->bytes);
  }
}

// Pages side by side at once: an allocation may have ten thousand.
void WeakMemory::protect_all(int access) {
  for (auto first = chunks_.begin(); first != chunks_.end();) {
    std::size_t bytes = 0;
    auto end = first;
    for (; end != chunks_.end() && end->guarded && end->at == first->at + bytes; ++end) {
      bytes += end->bytes;
    }
    if (bytes != 0) protect(first->at, bytes, access);
    first = end == first ? std::next(first) : end;
  }
}

WeakMemory::Chunk* WeakMemory::find(const void* at) {
  const auto* address = static_cast<const std::byte*>(at);
  auto next = std::upper_bound(
      chunks_.begin(), chunks_.end(), address,
      [](const std::byte* wanted, const Chunk& chunk) { return wanted < chunk.at; });
  if (next == chunks_.begin()) return nullptr;
  --next;
  return address < next->at + next->bytes ? &*next : nullptr;
}

void WeakMemory::open(Chunk& chunk) {
  if (!chunk.guarded || chunk.open) return;
  protect(chunk.at, chunk.bytes, PROT_READ | PROT_WRITE);
  chunk.open = true;
  open_.push_back(&chunk);
}

// Until now all views were the truth.
void WeakMemory::touch(Chunk& chunk) {
  if (chunk.touched) return;
  chunk.touched = true;
  touched_.push_back(&chunk);
  std::memcpy(&initial_[chunk.place], &truth_[chunk.place], chunk.bytes);
  for (View* view : views_) {
    std::memcpy(&view->bytes[chunk.place], &truth_[chunk.place], chunk.bytes);
    std::memset(&view->own[chunk.place], 0, chunk.bytes);
  }
}

void WeakMemory::start(View& view) {
  view.bytes = std::make_unique_for_overwrite<std::byte[]>(bytes_);
  view.own = std::make_unique_for_overwrite<bool[]>(bytes_);
  view.observed = false;
  for (const Chunk* chunk : touched_) {
    std::memcpy(&view.bytes[chunk->place], &initial_[chunk->place], chunk->bytes);
    std::memset(&view.own[chunk->place], 0, chunk->bytes);
  }
  views_.push_back(&view);
}

void WeakMemory::end(View& view) {
  for (const Chunk* chunk : touched_) {
    for (std::size_t i = chunk->place; i < chunk->place + chunk->bytes; ++i) {
      if (view.own[i]) unpublished_.emplace_back(i, view.bytes[i]);
    }
  }
  views_.erase(std::find(views_.begin(), views_.end(), &view));
}

void WeakMemory::install(const View& view) {
  for (Chunk* chunk : touched_) {
    const std::byte* bytes = &view.bytes[chunk->place];
    if (std::memcmp(chunk->at, bytes, chunk->bytes) == 0) continue;
    open(*chunk);
    std::memcpy(chunk->at, bytes, chunk->bytes);
  }
}

void WeakMemory::collect(Chunk& chunk, View& view, Stores& to) {
  const std::byte* before = chunk.touched ? &view.bytes[chunk.place] : &truth_[chunk.place];
  if (std::memcmp(chunk.at, before, chunk.bytes) == 0) return;
  touch(chunk);
  for (std::size_t i = 0; i < chunk.bytes; ++i) {
    const std::size_t place = chunk.place + i;
    if (chunk.at[i] == view.bytes[place]) continue;
    view.bytes[place] = chunk.at[i];
    view.own[place] = true;
    to.push_back(place);
  }
}

void WeakMemory::collect(View& view, Stores& to) {
  for (Chunk* chunk : loose_) collect(*chunk, view, to);
  for (Chunk* chunk : open_) {
    collect(*chunk, view, to);
    protect(chunk->at, chunk->bytes, PROT_READ);
    chunk->open = false;
  }
  open_.clear();
}

// Of a byte that two threads stored, the later value: they race.
void WeakMemory::publish(View& view, Stores& stores) {
  for (const std::size_t place : stores) {
    if (!view.own[place]) continue;
    truth_[place] = view.bytes[place];
    view.own[place] = false;
  }
  stores.clear();
}

void WeakMemory::refresh(View& view) {
  if (!view.observed) return;
  view.observed = false;
  for (const Chunk* chunk : touched_) {
    std::byte* bytes = &view.bytes[chunk->place];
    const std::byte* truth = &truth_[chunk->place];
    if (std::memcmp(bytes, truth, chunk->bytes) == 0) continue;
    const bool* own = &view.own[chunk->place];
    for (std::size_t i = 0; i < chunk->bytes; ++i) bytes[i] = own[i] ? bytes[i] : truth[i];
  }
  install(view);
}

void* WeakMemory::truth_of(View& view, const void* at, std::size_t bytes) {
  Chunk* chunk = find(at);
  if (chunk == nullptr) return nullptr;
  view.observed = true;
  touch(*chunk);
  const std::size_t place =
      chunk->place + static_cast<std::size_t>(static_cast<const std::byte*>(at) - chunk->at);
  for (std::size_t i = place; i < place + bytes; ++i) {
    if (view.own[i]) truth_[i] = view.bytes[i];
    view.own[i] = false;
  }
  return &truth_[place];
}

void WeakMemory::changed(View& view, void* at, std::size_t bytes) {
  Chunk& chunk = *find(at);
  const std::size_t place =
      chunk.place + static_cast<std::size_t>(static_cast<std::byte*>(at) - chunk.at);
  open(chunk);
  std::memcpy(&view.bytes[place], &truth_[place], bytes);
  std::memcpy(at, &truth_[place], bytes);
}

bool WeakMemory::read(View& view, void* to, const void* from, std::size_t bytes) {
  const Chunk* chunk = find(from);
  if (chunk == nullptr) return false;
  view.observed = true;
  const auto first = static_cast<std::size_t>(static_cast<const std::byte*>(from) - chunk->at);
  for (std::size_t i = first; i < first + bytes; ++i) {
    const std::size_t place = chunk->place + i;
    const std::byte before = chunk->touched ? view.bytes[place] : truth_[place];
    const bool own = chunk->at[i] != before || (chunk->touched && view.own[place]);
    static_cast<std::byte*>(to)[i - first] = own ? chunk->at[i] : truth_[place];
  }
  return true;
}

}  // namespace twell::emulation
