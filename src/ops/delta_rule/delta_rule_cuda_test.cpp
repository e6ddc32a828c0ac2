// The delta rule on a GPU gives the CPU's bits: outputs, journals and anchors.
#include "ops/delta_rule/delta_rule_testing.h"
#include "tests/support/cuda_case.h"

namespace weir::test {
namespace {

class DeltaRuleCuda : public testing::CudaCase {
 protected:
  CpuDevice cpu_{1, KernelSet::kReference};
};

void expect_equal(World& found, World& expected, const Shape& shape) {
  EXPECT_TRUE(same(found.sequence(0).out, expected.sequence(0).out)) << describe(shape);
  EXPECT_TRUE(same(found.pages(), expected.pages())) << describe(shape);
  EXPECT_TRUE(same(found.anchors(), expected.anchors())) << describe(shape);
}

TEST_F(DeltaRuleCuda, EqualsTheReferenceBitForBit) {
  std::mt19937_64 random(1);
  for (const Shape& shape : shapes()) {
    for (Gates gates : {Gates::kMild, Gates::kHard, Gates::kZero, Gates::kMixed}) {
      const Rows rows = random_rows(shape, 75, gates, random());
      const std::vector<int64_t> pieces = random_pieces(rows.count, random);
      World expected = run_alone(cpu_, shape, rows, pieces, Anchors::kAll);
      World found = run_alone(device(), shape, rows, pieces, Anchors::kAll);
      ASSERT_TRUE(finite(expected.sequence(0).out)) << describe(shape);
      expect_equal(found, expected, shape);
    }
  }
}

TEST_F(DeltaRuleCuda, AnySplitOfASpanEqualsTheWholeSpan) {
  for (const Shape& shape : shapes()) {
    const Rows rows = random_rows(shape, 67, Gates::kMild, 3);
    World whole = run_alone(device(), shape, rows, {rows.count}, Anchors::kAll);
    for (const std::vector<int64_t>& pieces :
         {std::vector<int64_t>(static_cast<size_t>(rows.count), 1), std::vector<int64_t>{15, 1, 1, 31, 16, 3}}) {
      World every = run_alone(device(), shape, rows, pieces, Anchors::kAll);
      expect_equal(every, whole, shape);
      World fewest = run_alone(device(), shape, rows, pieces, Anchors::kLast, true);
      EXPECT_TRUE(same(fewest.sequence(0).out, whole.sequence(0).out)) << describe(shape);
      EXPECT_EQ(std::memcmp(fewest.anchor(0, 64), whole.anchor(0, 64),
                            static_cast<size_t>(whole.anchor_floats()) * sizeof(float)),
                0);
    }
  }
}

TEST_F(DeltaRuleCuda, OnlyTheAnchorsAndPagesThatWereAskedForAreWritten) {
  const Shape shape{DecayKind::kBounded, 2, 32, 24};
  World world = run_alone(device(), shape, random_rows(shape, 70, Gates::kMild, 11), {70}, Anchors::kLast, true);
  for (int64_t chunk : {1, 2, 3}) {
    for (int64_t b = 0; b < world.page_bytes(); ++b) ASSERT_EQ(world.page(0, chunk)[b], std::byte{0xff});
    if (chunk == 3) continue;
    for (int64_t i = 0; i < world.anchor_floats(); ++i) ASSERT_TRUE(std::isnan(world.anchor(0, 16 * chunk)[i]));
  }
  EXPECT_TRUE(std::isfinite(world.anchor(0, 64)[0]));
}

TEST_F(DeltaRuleCuda, SequencesInOneBatchEqualEachAlone) {
  std::mt19937_64 random(23);
  for (const Shape& shape : {Shape{DecayKind::kBounded, 2, 32, 32}, Shape{DecayKind::kUnbounded, 2, 20, 24},
                             Shape{DecayKind::kScalar, 4, 32, 32, 2}}) {
    const std::vector<int64_t> lengths{1, 50, 17, 60};
    World world(device(), shape, 4, 60, 100);
    for (int64_t s = 0; s < 4; ++s) {
      world.sequence(s).rows = random_rows(shape, lengths[static_cast<size_t>(s)], Gates::kMild, random());
    }
    for (bool more = true; more;) {
      std::vector<int64_t> counts;
      more = false;
      for (int64_t s = 0; s < 4; ++s) {
        const int64_t left = lengths[static_cast<size_t>(s)] - world.sequence(s).position;
        counts.push_back(std::min<int64_t>(left, std::uniform_int_distribution<int64_t>(0, 25)(random)));
        more = more || left > counts.back();
      }
      world.step(counts, Anchors::kLast);
    }
    for (int64_t s = 0; s < 4; ++s) {
      const Rows& rows = world.sequence(s).rows;
      World alone = run_alone(cpu_, shape, rows, {rows.count}, Anchors::kLast);
      EXPECT_TRUE(same(world.sequence(s).out, alone.sequence(0).out)) << describe(shape);
    }
  }
}

TEST_F(DeltaRuleCuda, BoundsBeyondTheStepChangeNothing) {
  for (const Shape& shape : {Shape{DecayKind::kBounded, 2, 32, 32}, Shape{DecayKind::kScalar, 4, 20, 24, 2}}) {
    const Rows rows = random_rows(shape, 40, Gates::kMild, 5);
    World loose(device(), shape, 1, rows.count, 30);
    loose.sequence(0).rows = rows;
    loose.loosen_bounds(7);
    for (int64_t piece : {1, 9, 1, 20, 9}) {
      loose.step({piece}, Anchors::kAll);
      if (piece < 9) {
        for (int64_t i = 9 * loose.out_stride(); i < 16 * loose.out_stride(); ++i) {
          ASSERT_TRUE(std::isnan(loose.out()[static_cast<size_t>(i)]));
        }
      }
    }
    World exact = run_alone(cpu_, shape, rows, {rows.count}, Anchors::kAll);
    expect_equal(loose, exact, shape);
  }
}

}  // namespace
}  // namespace weir::test
