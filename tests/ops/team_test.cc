// OpenMP may grant fewer threads than a context has: within a parallel region of the caller, under
// OMP_THREAD_LIMIT, with OMP_DYNAMIC. Results are those of the whole team, bit for bit, since the
// plan alone says what is added up in which order.
//
// ctest runs this and other tests of operations again under OMP_THREAD_LIMIT and OMP_DYNAMIC, where
// the whole team is as small from the start.
#include <omp.h>

#include "tests/ops/every_operation.h"

namespace twell {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture of this file

ContextOptions on(CpuTier tier) { return {.threads = 4, .tier = tier}; }

// Two threads of the caller, or the one that a limit grants, each call everything.
template <class T>
void expect_from_within(CpuTier tier, const Inputs<T>& in, const Bytes& wanted) {
  Bytes got[2] = {wanted, wanted};
#pragma omp parallel num_threads(2)
  got[omp_get_thread_num()] = every_operation(on(tier), in);
  for (const Bytes& bytes : got) EXPECT_TRUE(bytes == wanted);
}

template <class T>
class TeamTest : public ::testing::Test {
 protected:
  // f(tier, inputs, what the whole team gives)
  template <class F>
  static void on_every_tier(F f) {
    for (const CpuTier tier : available_cpu_tiers()) {
      for (const std::int64_t tokens : {1, 7, 300}) {
        SCOPED_TRACE(std::string(name_of(tier)) + ", " + std::to_string(tokens) + " rows");
        const Inputs<T> in(tokens);
        f(tier, in, every_operation(on(tier), in));
      }
    }
  }
};
using Types = ::testing::Types<bf16, float>;
TYPED_TEST_SUITE(TeamTest, Types);

TYPED_TEST(TeamTest, WithinAParallelRegion) {
  this->on_every_tier([](CpuTier tier, const Inputs<TypeParam>& in, const Bytes& wanted) {
    expect_from_within(tier, in, wanted);
  });
}

TYPED_TEST(TeamTest, NestedTeams) {
  const int levels = omp_get_max_active_levels();
  omp_set_max_active_levels(2);
  this->on_every_tier([](CpuTier tier, const Inputs<TypeParam>& in, const Bytes& wanted) {
    expect_from_within(tier, in, wanted);
  });
  omp_set_max_active_levels(levels);
}

// As many threads as the machine's load leaves, another number in each call.
TYPED_TEST(TeamTest, DynamicTeams) {
  omp_set_dynamic(1);
  this->on_every_tier([](CpuTier tier, const Inputs<TypeParam>& in, const Bytes& wanted) {
    EXPECT_TRUE(every_operation(on(tier), in) == wanted);
  });
  omp_set_dynamic(0);
}

}  // namespace
}  // namespace twell
