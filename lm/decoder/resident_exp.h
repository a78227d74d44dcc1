// Keeps the exponential of PyTorch's softmax fast.
#pragma once

namespace twell::lm {

// The vector exponential in PyTorch (SLEEF, AVX-512) reads what it answers on overflow by a masked
// load. Where that page of libtorch_cpu is not mapped, because it was never touched or the system
// has taken it back, such a load neither fails nor maps it: it waits for the processor's microcode,
// in every call. Measured on Zen 5: softmax 27 ms instead of 1.2, half of the time of a 2B model's
// prefill. This overflows once, which reads the page for real; 2 µs, so once a forward pass.
void keep_exp_resident();

}  // namespace twell::lm
