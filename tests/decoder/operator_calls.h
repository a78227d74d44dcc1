// What the operators of torch.ops.twell are called with on this thread.
#pragma once

#include <ATen/record_function.h>

#include <string>
#include <utility>
#include <vector>

namespace twell::test {

// Of torch.ops.twell.ffn and ffn_stats, while it lives; one at a time.
class FfnCalls {
 public:
  struct Call {
    bool stats = false;
    at::Tensor x, gate, up, down, screen;
    std::int64_t hot = 0;
  };

  FfnCalls() {
    calls().clear();
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
              const std::string name = function.name();
              if (name == "twell::ffn" || name == "twell::ffn_stats") {
                const auto in = function.inputs();
                const auto tensor = [](const c10::IValue& value) {
                  return value.isTensor() ? value.toTensor() : at::Tensor();
                };
                const auto weights = in[1].toListRef();
                calls().push_back({name == "twell::ffn_stats", in[0].toTensor(), tensor(weights[0]),
                                   tensor(weights[1]), tensor(weights[2]), tensor(in[2]),
                                   in[4].toInt()});
              }
              return nullptr;
            })
            .needsInputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~FfnCalls() { at::removeCallback(handle_); }
  FfnCalls(const FfnCalls&) = delete;
  FfnCalls& operator=(const FfnCalls&) = delete;

  std::size_t size() const { return calls().size(); }
  const Call& last() const { return calls().back(); }

 private:
  static std::vector<Call>& calls() {
    static std::vector<Call> made;
    return made;
  }
  at::CallbackHandle handle_;
};

}  // namespace twell::test
