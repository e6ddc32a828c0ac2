// golden_test on a GPU, `--activations f32`.
#define WEIR_TEST_GPU 0
#include "tests/golden_test.cpp"

static const auto* const kEnvironment = ::testing::AddGlobalTestEnvironment(new weir::test::NeedsGpu);
