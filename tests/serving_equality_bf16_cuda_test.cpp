// serving_equality_test on a GPU as it computes by default: BF16 products, BF16 K and V, recorded graphs.
#define WEIR_TEST_GPU 0
#define WEIR_TEST_AUTO 1
#include "tests/serving_equality_test.cpp"

static const auto* const kEnvironment = ::testing::AddGlobalTestEnvironment(new weir::test::NeedsGpu);
