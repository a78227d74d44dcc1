#include "files/unfinished.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

namespace twell::io {
namespace {

struct Begun {
  std::recursive_mutex mutex;  // finish() may end what was begun inside
  std::vector<Unfinished*> all;
};
Begun& begun() {
  static auto* const one = new Begun;  // whoever removes may outlive main()
  return *one;
}

}  // namespace

Unfinished::Unfinished(std::function<void()> remove) : remove_(std::move(remove)) {
  const std::lock_guard lock(begun().mutex);
  begun().all.push_back(this);
}

Unfinished::~Unfinished() {
  const std::lock_guard lock(begun().mutex);
  std::erase(begun().all, this);
}

void Unfinished::finish(const std::function<void()>& commit) {
  const std::lock_guard lock(begun().mutex);
  commit();
  std::erase(begun().all, this);
}

void remove_unfinished() noexcept {
  begun().mutex.lock();
  // The youngest first: files before the directories that they are in.
  for (auto one = begun().all.rbegin(); one != begun().all.rend(); ++one) {
    try {
      (*one)->remove_();
    } catch (const std::exception&) {  // what stays is removed by the next of its name
    }
  }
}

}  // namespace twell::io
