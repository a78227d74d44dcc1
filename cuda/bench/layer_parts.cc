#include "cuda/bench/layer_parts.h"

#include <algorithm>

namespace twell::bench {

LayerParts::LayerParts(const cuda::Device& device, const DeviceLayer& layer, std::int64_t tokens,
                       const cuda::FfnPlan& plan, cudaStream_t stream)
    : layer_(layer),
      tokens_(tokens),
      stream_(stream),
      fused_(plan.gemm.shape != cuda::GemmShape::library),
      gemm_(fused_ ? plan.gemm
                   : cuda::plan_gemm_relu_twell(plan.gemm.shape, device, layer.problem(tokens))),
      gather_(plan.gather),
      layout_{tokens, layer.neurons, gemm_.tile, gemm_.tile, DType::bf16},
      counts_(cuda::count_words(layout_)),
      slots_(cuda::slot_words(layout_)),
      memory_(std::max(gemm_.workspace_bytes, gather_.workspace_bytes(tokens))),
      y_(fused_ ? static_cast<std::size_t>(tokens * layer.width) : 0) {}

void LayerParts::gate() const {
  cuda::gemm_relu_twell(gemm_, layer_.inputs(0, tokens_), layer_.weights().gate.matrix(), {},
                        {layout_, counts_.get(), slots_.get(), nullptr},
                        {memory_.get(), memory_.size()}, stream_, layer_.screen);
}

void LayerParts::gather() const {
  cuda::twell_gated_ffn(
      gather_, layer_.inputs(0, tokens_), {layout_, counts_.get(), slots_.get(), nullptr},
      layer_.weights().up->matrix(), layer_.weights().down.matrix(),
      {y_.get(), DType::bf16, tokens_, layer_.width}, {memory_.get(), memory_.size()}, stream_);
}

}  // namespace twell::bench
