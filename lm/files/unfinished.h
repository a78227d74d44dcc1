// What a program has begun to write, for where it ends without unwinding.
#pragma once

#include <functional>

namespace twell::io {

// Removes all that is unfinished. From then on whoever finishes something waits forever: the
// process is to end.
void remove_unfinished() noexcept;

// Knows how to remove it, until it is finished or this object goes.
class Unfinished {
 public:
  // `remove` may be called on another thread than the one that writes.
  explicit Unfinished(std::function<void()> remove);
  ~Unfinished();
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

  // Puts it in its place by `commit`; never while remove_unfinished() is under way.
  void finish(const std::function<void()>& commit);

 private:
  friend void remove_unfinished() noexcept;
  std::function<void()> remove_;
};

}  // namespace twell::io
