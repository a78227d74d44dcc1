// What torch.ops.twell says of wrong CUDA tensors. No GPU is needed: the checks come before any
// CUDA call and read no element, so the tensors here only claim to lie on a GPU.
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <vector>

namespace {

using torch::Tensor;

void load(const char* file) {
  ASSERT_NE(dlopen(file, RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
}

class TorchCudaArguments : public testing::Test {
 public:
  static void SetUpTestSuite() {
    load(TORCH_CUDA_LIBRARY);
    load(TWELL_LIBRARY);
    load(TWELL_CUDA_LIBRARY);
  }

 protected:
  // [rows, cols] on a GPU that need not exist; `offset` in bytes from an aligned address.
  Tensor gpu(std::vector<std::int64_t> shape, at::ScalarType dtype = at::kBFloat16,
             std::int64_t offset = 0, std::int64_t ordinal = 0) {
    auto& memory = memory_.emplace_back(at::zeros({4096}, at::kByte));
    const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(ordinal));
    return at::for_blob(static_cast<std::byte*>(memory.mutable_data_ptr()) + offset, shape)
        .options(at::TensorOptions(dtype).device(device))
        .target_device(device)
        .make_tensor();
  }

  static void expect_error(const char* name, std::vector<c10::IValue> arguments,
                           const std::string& message) {
    const auto operation =
        c10::Dispatcher::singleton().findSchemaOrThrow((std::string("twell::") + name).c_str(), "");
    try {
      operation.callBoxed(arguments);
      FAIL() << name << " accepts them; expected: " << message;
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos)
          << "expected: " << message << "\ngot: " << error.what();
    }
  }

  // The operators' list of weights, for one call: PyTorch 2.11 moves the tensors out of it.
  static c10::IValue weights(std::vector<c10::IValue> entries) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& entry : entries) list.push_back(entry.toOptional<at::Tensor>());
    return list;
  }

  void expect_ffn_error(const Tensor& x, const Tensor& gate, const Tensor& up, const Tensor& down,
                        const std::string& message, const char* activation = "relu") {
    for (const char* name : {"ffn", "ffn_stats"}) {
      expect_error(name, {x, weights({gate, up, down}), c10::IValue(), activation, kNoneHot},
                   message);
    }
  }

  static constexpr std::int64_t kNoneHot = 0;
  const c10::InferenceMode inference_;
  std::vector<Tensor> memory_;
  // D = 32, H = 16: packed to [16, 32, 1].
  Tensor x_ = gpu({2, 32}), gate_ = gpu({16, 32, 1}), up_ = gpu({16, 32}), down_ = gpu({16, 32});
};

TEST_F(TorchCudaArguments, Device) {
  expect_ffn_error(x_, gate_, up_, at::zeros({16, 32}, at::kBFloat16),
                   "down: expected a CUDA tensor, as the other arguments are");
  expect_ffn_error(x_, at::zeros({16, 32, 1}, at::kBFloat16), up_, down_,
                   "gate: expected a CUDA tensor");
  expect_ffn_error(x_, gate_, gpu({16, 32}, at::kBFloat16, 0, 1), down_,
                   "up: expected a tensor on cuda:0 as the other arguments are, got cuda:1");
}

TEST_F(TorchCudaArguments, DType) {
  expect_ffn_error(gpu({2, 32}, at::kFloat), gate_, up_, down_,
                   "x: expected dtype bfloat16 or float16 on a GPU, got Float");
  expect_ffn_error(x_, gate_, gpu({16, 32}, at::kHalf), down_,
                   "up: expected bf16 [16, 32], got f16 [16, 32]");
  expect_ffn_error(x_, gpu({16, 32, 1}, at::kHalf), up_, down_,
                   "gate: expected bf16 [16, 32], got f16 [16, 32]");
}

TEST_F(TorchCudaArguments, ShapeAndStride) {
  expect_ffn_error(x_, gate_, gpu({16, 31}), down_,
                   "up: expected bf16 [16, 32], got bf16 [16, 31]");
  expect_ffn_error(x_, gate_, up_, gpu({32, 16}).t(),
                   "down: expected rows of adjacent elements, got shape [16, 32]");
  expect_ffn_error(x_, up_, up_, down_,
                   "gate: expected what pack_weight makes, got shape [16, 32]");
  expect_ffn_error(gpu({}), gate_, up_, down_, "x: expected shape [..., columns], got a scalar");
  expect_error("pack_weight", {gpu({32})},
               "twell::pack_weight: weight: expected a matrix [rows, columns], got shape [32]");
}

TEST_F(TorchCudaArguments, Misalignment) {
  expect_ffn_error(x_, gate_, up_, gpu({16, 32}, at::kBFloat16, 1),
                   "down: expected an address that is a multiple of 2 bytes");
  expect_ffn_error(gpu({2, 32}, at::kBFloat16, 3), gate_, up_, down_, "x: expected an address");
  expect_ffn_error(x_, gpu({16, 32, 1}, at::kBFloat16, 1), up_, down_, "gate: expected");
}

TEST_F(TorchCudaArguments, Activation) {
  expect_ffn_error(x_, gate_, up_, down_,
                   "activation: expected one of relu, relu_squared, fat_relu", "silu");
}

// What a form has beside the gate's activation is for CPUs alone, in every operator.
TEST_F(TorchCudaArguments, Additions) {
  const c10::IValue none;
  const Tensor gate = gpu({16, 32}), sum = gpu({16, 32}, at::kFloat);
  const std::vector<Tensor> kept = {gpu({0}, at::kLong), gpu({0}, at::kInt), gpu({1052})};
  const auto refuse = [&](const char* addition, const std::vector<c10::IValue>& vectors,
                          const std::string& form) {
    const auto list = [&](const Tensor& first) {
      std::vector<c10::IValue> entries = {first, up_, down_};
      entries.insert(entries.end(), vectors.begin(), vectors.end());
      return weights(entries);
    };
    const auto message =
        std::string(addition) + ": is not there on a GPU yet; use PyTorch's dense layers";
    expect_error("ffn", {x_, list(gate_), none, form, kNoneHot}, message);
    expect_error("ffn_stats", {x_, list(gate_), none, form, kNoneHot}, message);
    expect_error("ffn_train", {x_, list(gate), none, form, kNoneHot}, message);
    expect_error("ffn_train_backward", {x_, x_, list(gate), kept, none, form, kNoneHot}, message);
    expect_error("ffn_train_backward_add",
                 {x_, x_, list(gate), kept, none, weights({sum, sum, sum}), form, kNoneHot},
                 message);
  };
  refuse("up_activation", {}, "relu up=relu");
  refuse("gate_bias", {gpu({16})}, "relu");
  refuse("up_bias", {none, gpu({16})}, "relu");
  refuse("down_bias", {none, none, gpu({32})}, "relu");
  refuse("norm_weight", {none, none, none, gpu({16})}, "relu norm=1e-05");
  refuse("norm_epsilon", {}, "relu norm=1e-05");
}

TEST_F(TorchCudaArguments, OptionalOperands) {
  const auto ffn = [&](const c10::IValue& up, const c10::IValue& screen, const char* message) {
    expect_error("ffn", {x_, weights({gate_, up, down_}), screen, "relu", kNoneHot}, message);
  };
  // With a screen the gate is Wg itself.
  ffn(up_, gpu({64}, at::kByte), "gate: expected");
  for (const Tensor& screen : {gpu({64}, at::kByte), gpu({3328})}) {
    expect_error("ffn", {x_, weights({gpu({16, 32}), up_, down_}), screen, "relu", kNoneHot},
                 "screen: expected uint8 [3328], as screen_weight makes of [16, 32] on a GPU");
  }
  expect_error("screen_weight", {up_, gpu({31}, at::kFloat)},
               "axis: expected contiguous f32 [32], got [31]");
  expect_error("screen_weight", {gpu({16, 32}, at::kFloat), c10::IValue()},
               "weight: expected dtype bfloat16 or float16 on a GPU");
}

TEST_F(TorchCudaArguments, PackedActivation) {
  const Tensor counts = gpu({2, 1}, at::kInt), slots = gpu({2, 1, 4}, at::kInt);
  const Tensor overflow = gpu({2, 16}, at::kInt);
  const auto spmm = [&](const Tensor& c, const Tensor& s, const Tensor& o, const char* message) {
    expect_error("twell_spmm", {c, s, o, down_}, std::string("twell::twell_spmm: ") + message);
  };
  spmm(at::zeros({2, 1}, at::kInt), slots, overflow,
       "counts: expected a CUDA tensor, as the other arguments are");
  spmm(gpu({2, 1}, at::kLong), slots, overflow, "counts: expected a contiguous tensor of 2 dim");
  spmm(gpu({2, 2}, at::kInt), slots, overflow, "counts: expected 1 tiles for 16 columns");
  spmm(counts, gpu({2, 4}, at::kInt), overflow, "slots: expected a contiguous tensor of 3");
  spmm(counts, gpu({3, 1, 4}, at::kInt), overflow, "slots: expected the rows and tiles of counts");
  expect_error("twell_spmm", {counts, gpu({2, 1, 17}, at::kInt), overflow, down_},
               "twell::TwellLayout: capacity: expected 1 to tile, got 17");
  spmm(counts, slots, gpu({2, 16}, at::kBFloat16),
       "overflow: expected a contiguous tensor of 2 dim");
  expect_error("twell_gated_ffn", {gpu({3, 32}), counts, slots, overflow, up_, down_},
               "twell::twell_gated_ffn: counts: expected 3 rows, as x has");
  expect_error("gemm_relu_twell",
               {x_, gate_, std::string("relu"), 0.0, std::int64_t{0}, std::int64_t{4}},
               "twell::gemm_relu_twell: tile: expected 1 to 65536, got 0");
  expect_error("twell_to_dense",
               {counts, slots, overflow, std::int64_t{16}, static_cast<std::int64_t>(at::kFloat)},
               "twell::twell_to_dense: dtype: expected dtype bfloat16 or float16 on a GPU");
}

TEST_F(TorchCudaArguments, Training) {
  const Tensor gate = gpu({16, 32});
  const c10::IValue none;
  const auto forward = [&](const Tensor& x, const Tensor& g, const c10::IValue& screen,
                           std::int64_t hot, const char* message) {
    expect_error("ffn_train", {x, weights({g, up_, down_}), screen, "relu", hot},
                 std::string("twell::ffn_train: ") + message);
  };
  forward(gpu({2, 32}, at::kFloat), gate, none, 0, "x: expected dtype bfloat16 or float16");
  forward(x_, at::zeros({16, 32}, at::kBFloat16), none, 0, "gate: expected a CUDA tensor");
  forward(x_, gate, gpu({64}, at::kByte), 0, "screen: expected none");
  forward(x_, gate, none, 17, "hot: expected 0 to 16, got 17");

  const Tensor offsets = gpu({0}, at::kLong), neurons = gpu({0}, at::kInt);
  const auto list = [&] { return weights({gate, up_, down_}); };
  const auto backward = [&](const Tensor& dy, const Tensor& values, const c10::IValue& l1,
                            const char* message) {
    expect_error("ffn_train_backward",
                 {dy, x_, list(), std::vector{offsets, neurons, values}, l1, "relu", kNoneHot},
                 std::string("twell::ffn_train_backward: ") + message);
  };
  backward(x_, gpu({7}), none, "values: expected [1052] as ffn_train makes it, got [7]");
  backward(at::zeros({2, 32}, at::kBFloat16), gpu({1052}), none, "dy: expected a CUDA tensor");
  backward(x_, gpu({1052}), at::zeros({}, at::kFloat), "l1_grad: expected a CUDA tensor");
  backward(x_, gpu({1052}), gpu({2}, at::kFloat), "l1_grad: expected Float [], got [2]");
  const auto sums = gpu({16, 32}, at::kFloat);
  expect_error("ffn_train_backward_add",
               {x_, x_, list(), std::vector{offsets, neurons, gpu({1052})}, none,
                weights({sums, gate, sums}), "relu", kNoneHot},
               "dup: expected f32 [H, D] with contiguous rows, got [16, 32]");
}

// The GPU is asked last, and there may be none.
TEST_F(TorchCudaArguments, Plans) {
  const auto choose = [&](const Tensor& rates, const char* activation, const char* message) {
    expect_error("choose_hot",
                 {rates, std::int64_t{64}, std::int64_t{32}, std::int64_t{1000},
                  std::string(activation), true, false, false},
                 message);
  };
  const Tensor rates = at::ones({16}, at::kDouble);
  for (const Tensor& wrong : {gpu({16}, at::kDouble), rates.to(at::kBFloat16),
                              at::ones({4, 4}, at::kDouble), at::ones({0}, at::kDouble)}) {
    choose(wrong, "relu", "twell::choose_hot: rates: expected f64 or f32 [H] on the CPU");
  }
  choose(rates, "silu", "twell::choose_hot: activation: expected one of relu");
  // "ordinal: expected 0 to …" where there are GPUs.
  const char* none = at::hasCUDA() ? "ordinal: expected 0 to" : "no NVIDIA GPU or driver";
  choose(rates, "fat_relu", none);
  const auto train = [&](const Tensor& of, const char* activation, const char* message) {
    expect_error(
        "choose_training",
        {of, std::int64_t{64}, std::int64_t{32}, std::int64_t{1000}, std::string(activation), true},
        message);
  };
  train(at::ones({4, 4}), "relu", "twell::choose_training: rates: expected f64 or f32 [H]");
  train(rates, "silu", "twell::choose_training: activation: expected one of relu");
  train(rates, "fat_relu", none);
  expect_error("screen_pays",
               {std::int64_t{1}, std::int64_t{32}, std::int64_t{16}, 0.01, std::int64_t{1000}},
               none);
}

}  // namespace
