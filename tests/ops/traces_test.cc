// The fused layer on activity that a trained model had on text: skewed, and different in every
// layer. data/README.md says where the trace is from.
#include "files/activity_trace.h"
#include "tests/ops/ffn_fixture.h"

namespace twell {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture of this file

template <class T>
class TracesTest : public testing::Test {};
using Types = testing::Types<bf16, float>;
TYPED_TEST_SUITE(TracesTest, Types);

TYPED_TEST(TracesTest, EveryLayerOnEveryPath) {
  const io::ActivityTrace trace("tests/ops/data/trained.trace");
  const auto neurons = static_cast<std::int64_t>(trace.header().neurons);
  const auto tokens = static_cast<std::int64_t>(trace.header().tokens);
  for (std::uint32_t l = 0; l < trace.header().layers; ++l) {
    const io::ActivityRows rows = trace.read(l);
    ASSERT_GT(rows.neurons.size(), 0U) << "layer " << l;
    std::vector<std::vector<bool>> fired(
        static_cast<std::size_t>(tokens),
        std::vector<bool>(static_cast<std::size_t>(neurons), false));
    for (std::size_t r = 0; r < rows.rows(); ++r) {
      for (const std::uint32_t n : rows.row(r)) fired[r][n] = true;
    }
    auto layer = layer_that_fires<TypeParam>(
        tokens, neurons, trace.header().gated, [&](std::int64_t r, std::int64_t n) {
          return fired[static_cast<std::size_t>(r)][static_cast<std::size_t>(n)];
        });
    SCOPED_TRACE("layer " + std::to_string(l));
    check_every_path(layer, static_cast<std::int64_t>(rows.neurons.size()));
  }
}

}  // namespace
}  // namespace twell
