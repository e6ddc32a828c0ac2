#include "ops/delta_rule/delta_rule.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "base/error.h"
#include "ops/delta_rule/delta_rule_testing.h"
#include "ops/simd/kernel_sets.h"

namespace weir::test {
namespace {

TEST(DeltaRule, EveryKernelSetEqualsTheReferenceBitForBit) {
  CpuDevice plain(1, KernelSet::kReference);
  std::mt19937_64 random(1);
  for (KernelSet set : kernel_sets()) {
    if (set == KernelSet::kReference) continue;
    CpuDevice device(2, set);
    for (const Shape& shape : shapes()) {
      for (Gates gates : {Gates::kMild, Gates::kHard, Gates::kZero, Gates::kMixed}) {
        const Rows rows = random_rows(shape, 75, gates, random());
        const std::vector<int64_t> pieces = random_pieces(rows.count, random);
        World expected = run_alone(plain, shape, rows, pieces, Anchors::kAll);
        World found = run_alone(device, shape, rows, pieces, Anchors::kAll);
        ASSERT_TRUE(finite(expected.sequence(0).out)) << describe(shape);
        EXPECT_TRUE(same(found.sequence(0).out, expected.sequence(0).out))
            << kernel_set_name(set) << " " << describe(shape);
        EXPECT_TRUE(same(found.pages(), expected.pages())) << kernel_set_name(set) << " " << describe(shape);
        EXPECT_TRUE(same(found.anchors(), expected.anchors())) << kernel_set_name(set) << " " << describe(shape);
      }
    }
  }
}

TEST(DeltaRule, EveryKernelSetEqualsTheReferenceOnHugeTinyAndSignedZeroValues) {
  CpuDevice plain(1, KernelSet::kReference);
  for (KernelSet set : kernel_sets()) {
    CpuDevice device(1, set);
    for (const Shape& shape : shapes()) {
      Rows rows = random_rows(shape, 40, Gates::kMild, 5);
      const float specials[] = {-0.f, 0.f, 1e-40f, -1e-40f, 1e18f, -1e-30f, 3e-38f};
      std::mt19937_64 random(2);
      for (std::vector<float>* values : {&rows.q, &rows.k, &rows.v}) {
        for (float& value : *values) {
          if (random() % 4 == 0) value = specials[random() % 7];
        }
      }
      for (float& g : rows.g) {
        if (random() % 4 == 0) g = -0.f;
      }
      World expected = run_alone(plain, shape, rows, {40}, Anchors::kAll);
      World found = run_alone(device, shape, rows, {40}, Anchors::kAll);
      // What overflowed is NaN in both: payloads are not part of the contract.
      const auto equal = [](float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b); };
      EXPECT_TRUE(std::equal(found.sequence(0).out.begin(), found.sequence(0).out.end(),
                             expected.sequence(0).out.begin(), equal))
          << kernel_set_name(set) << " " << describe(shape);
      const auto pages = found.pages().as<float>(), wanted = expected.pages().as<float>();
      EXPECT_TRUE(std::equal(pages.begin(), pages.end(), wanted.begin(), equal))
          << kernel_set_name(set) << " " << describe(shape);
    }
  }
}

TEST(DeltaRule, AnySplitOfASpanEqualsTheWholeSpan) {
  std::mt19937_64 random(3);
  for (KernelSet set : kernel_sets()) {
    CpuDevice device(1, set);
    for (const Shape& shape : shapes()) {
      for (Gates gates : {Gates::kMild, Gates::kHard}) {
        const Rows rows = random_rows(shape, 131, gates, random());
        World whole = run_alone(device, shape, rows, {rows.count}, Anchors::kAll);
        std::vector<std::vector<int64_t>> splits{std::vector<int64_t>(static_cast<size_t>(rows.count), 1),
                                                 {16, 16, 16, 16, 16, 16, 16, 16, 3},
                                                 {15, 1, 1, 15, 17, 31, 1, 50}};
        const int rounds = set == KernelSet::kReference ? 1 : 3;  // the reference is slow
        for (int i = 0; i < rounds; ++i) splits.push_back(random_pieces(rows.count, random));
        for (const std::vector<int64_t>& pieces : splits) {
          World every = run_alone(device, shape, rows, pieces, Anchors::kAll);
          EXPECT_TRUE(same(every.sequence(0).out, whole.sequence(0).out)) << describe(shape);
          EXPECT_TRUE(same(every.pages(), whole.pages())) << describe(shape);
          EXPECT_TRUE(same(every.anchors(), whole.anchors())) << describe(shape);
          // Only the anchor that is needed next, and no page for chunks that nobody reads again.
          World fewest = run_alone(device, shape, rows, pieces, Anchors::kLast, true);
          EXPECT_TRUE(same(fewest.sequence(0).out, whole.sequence(0).out)) << describe(shape);
          EXPECT_EQ(std::memcmp(fewest.page(0, 8), whole.page(0, 8), static_cast<size_t>(whole.page_bytes())), 0);
          EXPECT_EQ(std::memcmp(fewest.anchor(0, 128), whole.anchor(0, 128),
                                static_cast<size_t>(whole.anchor_floats()) * sizeof(float)),
                    0);
        }
      }
    }
  }
}

// The recurrence as published (Gated Delta Networks, arXiv:2412.06464), in double.
TEST(DeltaRule, ScalarDecayFollowsTheRecurrenceWithEachHeadsKeyHead) {
  CpuDevice device(1, KernelSet::kReference);
  for (const Shape& shape : shapes()) {
    if (!shape.scalar()) continue;
    const Rows rows = random_rows(shape, 60, Gates::kMild, 31);
    World world = run_alone(device, shape, rows, {33, 27}, Anchors::kAll);
    for (int64_t h = 0; h < shape.heads; ++h) {
      const int64_t key =
          shape.order == KeyHeadOrder::kTiled ? h % shape.key_heads : h / (shape.heads / shape.key_heads);
      std::vector<double> state(static_cast<size_t>(shape.key_dim * shape.value_dim));
      for (int64_t t = 0; t < rows.count; ++t) {
        const float* q = &rows.q[static_cast<size_t>(t * shape.keys() + key * shape.key_dim)];
        const float* k = &rows.k[static_cast<size_t>(t * shape.keys() + key * shape.key_dim)];
        const float* v = &rows.v[static_cast<size_t>(t * shape.values() + h * shape.value_dim)];
        for (double& s : state) s *= std::exp(double{rows.g[static_cast<size_t>(t * shape.heads + h)]});
        for (int64_t j = 0; j < shape.value_dim; ++j) {
          const auto at = [&](int64_t c) -> double& { return state[static_cast<size_t>(c * shape.value_dim + j)]; };
          double read = 0, out = 0;
          for (int64_t c = 0; c < shape.key_dim; ++c) read += at(c) * double{k[c]};
          const double u = double{rows.beta[static_cast<size_t>(t * shape.heads + h)]} * (double{v[j]} - read);
          for (int64_t c = 0; c < shape.key_dim; ++c) at(c) += double{k[c]} * u;
          for (int64_t c = 0; c < shape.key_dim; ++c) out += at(c) * double{q[c]};
          const auto index = static_cast<size_t>(t * shape.values() + h * shape.value_dim + j);
          ASSERT_NEAR(world.sequence(0).out[index], out, 1e-5) << describe(shape) << ", row " << t << ", head " << h;
        }
      }
    }
  }
}

TEST(DeltaRule, OnlyTheAnchorsAndPagesThatWereAskedForAreWritten) {
  for (KernelSet set : kernel_sets()) {
    CpuDevice device(1, set);
    const Shape shape{DecayKind::kBounded, 2, 32, 24};
    const Rows rows = random_rows(shape, 70, Gates::kMild, 11);
    World world = run_alone(device, shape, rows, {70}, Anchors::kLast, true);
    for (int64_t chunk : {1, 2, 3}) {
      for (int64_t b = 0; b < world.page_bytes(); ++b) ASSERT_EQ(world.page(0, chunk)[b], std::byte{0xff});
      if (chunk == 3) continue;
      for (int64_t i = 0; i < world.anchor_floats(); ++i) ASSERT_TRUE(std::isnan(world.anchor(0, 16 * chunk)[i]));
    }
    EXPECT_TRUE(std::isfinite(world.anchor(0, 64)[0]));
  }
}

TEST(DeltaRule, AnAnchorThatExistsIsUsedAndTheOldOnesStayAsTheyWere) {
  for (KernelSet set : kernel_sets()) {
    CpuDevice device(1, set);
    for (const Shape& shape : shapes()) {
      const Rows rows = random_rows(shape, 100, Gates::kMild, 17);
      World whole = run_alone(device, shape, rows, {100}, Anchors::kAll);
      // A second sequence starts at 48 from the first one's anchor, without its pages: a prefix found in a cache.
      World hit(device, shape, 2, rows.count, rows.count);
      hit.sequence(0).rows = rows;
      hit.sequence(1).rows = rows;
      hit.step({60, 0}, Anchors::kAll);
      const std::vector<float> before(hit.anchor(0, 16), hit.anchor(0, 16) + hit.anchor_floats());
      const std::vector<float> shared(hit.anchor(0, 48), hit.anchor(0, 48) + hit.anchor_floats());
      World::Sequence& second = hit.sequence(1);
      second.position = second.anchor_position = 48;
      second.anchor = hit.slot(0, 48);
      for (int64_t piece : {1, 20, 31}) hit.step({0, piece}, Anchors::kAll);
      const std::vector<float> tail(whole.sequence(0).out.end() - static_cast<int64_t>(second.out.size()),
                                    whole.sequence(0).out.end());
      EXPECT_TRUE(same(second.out, tail)) << describe(shape);
      EXPECT_TRUE(same(before, std::vector<float>(hit.anchor(0, 16), hit.anchor(0, 16) + hit.anchor_floats())));
      EXPECT_TRUE(same(shared, std::vector<float>(hit.anchor(0, 48), hit.anchor(0, 48) + hit.anchor_floats())));
    }
  }
}

TEST(DeltaRule, SequencesInOneBatchEqualEachAloneWithOneThreadAndTwo) {
  std::mt19937_64 random(23);
  for (KernelSet set : kernel_sets()) {
    for (int threads : {1, 2}) {
      CpuDevice device(threads, set);
      for (const Shape& shape : shapes()) {
        const std::vector<int64_t> lengths{1, 50, 16, 17, 90};
        World world(device, shape, 5, 90, 200);
        for (int64_t s = 0; s < 5; ++s) {
          world.sequence(s).rows = random_rows(shape, lengths[static_cast<size_t>(s)], Gates::kMild, random());
        }
        for (bool more = true; more;) {
          std::vector<int64_t> counts;
          more = false;
          for (int64_t s = 0; s < 5; ++s) {
            const int64_t left = lengths[static_cast<size_t>(s)] - world.sequence(s).position;
            counts.push_back(std::min<int64_t>(left, std::uniform_int_distribution<int64_t>(0, 25)(random)));
            more = more || left > counts.back();
          }
          world.step(counts, Anchors::kLast);
        }
        for (int64_t s = 0; s < 5; ++s) {
          const Rows& rows = world.sequence(s).rows;
          World alone = run_alone(device, shape, rows, {rows.count}, Anchors::kLast);
          EXPECT_TRUE(same(world.sequence(s).out, alone.sequence(0).out)) << describe(shape);
        }
      }
    }
  }
}

TEST(DeltaRule, CountsStateBytes) {
  CpuDevice device(1, best_kernel_set());
  const Shape shape{DecayKind::kBounded, 2, 32, 32};
  World world(device, shape, 1, 40, 40);
  world.sequence(0).rows = random_rows(shape, 40, Gates::kMild, 1);
  const int64_t row = delta_rule_journal_row_bytes(shape.args()), anchor = delta_rule_anchor_bytes(shape.args());
  world.step({16}, Anchors::kLast);
  EXPECT_EQ(device.counters().state_bytes_read, 0);
  EXPECT_EQ(device.counters().state_bytes_written, 16 * row);
  device.counters() = {};
  world.step({1}, Anchors::kLast);  // reads the full page, makes the anchor at 16
  EXPECT_EQ(device.counters().state_bytes_read, 16 * row);
  EXPECT_EQ(device.counters().state_bytes_written, row + anchor);
  device.counters() = {};
  world.step({1}, Anchors::kLast);
  EXPECT_EQ(device.counters().state_bytes_read, row + anchor);
  EXPECT_EQ(device.counters().state_bytes_written, row);
  EXPECT_EQ(world.op().cost(1, 17).state_bytes, 2 * row + anchor);
  EXPECT_EQ(world.op().cost(1, 32).state_bytes, 17 * row + 2 * anchor);
}

TEST(DeltaRule, RefusesDimensionsAndBuffersThatDoNotFit) {
  CpuDevice device(1, KernelSet::kReference);
  std::vector<float> x(4096);
  DeltaRuleArgs good{.heads = 2, .key_dim = 8, .value_dim = 8};
  good.journal.row_bytes = delta_rule_journal_row_bytes(good);
  good.state.bytes = delta_rule_anchor_bytes(good);
  good.q = good.k = good.v = good.g = good.beta = x.data();
  good.out = x.data();
  good.q_stride = good.k_stride = good.v_stride = good.g_stride = good.out_stride = 16;
  good.beta_stride = 2;
  EXPECT_NO_THROW(bind_delta_rule(device, "op", good));
  const auto refuses = [&](auto change) {
    DeltaRuleArgs args = good;
    change(args);
    EXPECT_THROW(bind_delta_rule(device, "op", args), Error);
  };
  refuses([](DeltaRuleArgs& a) { a.heads = 0; });
  refuses([](DeltaRuleArgs& a) { a.key_dim = 257; });
  refuses([](DeltaRuleArgs& a) { a.value_dim = 0; });
  refuses([](DeltaRuleArgs& a) { a.journal.row_bytes -= 4; });
  refuses([](DeltaRuleArgs& a) { a.state.bytes -= 4; });
  refuses([](DeltaRuleArgs& a) { a.v_stride = 15; });
  refuses([](DeltaRuleArgs& a) { a.g = nullptr; });
  refuses([](DeltaRuleArgs& a) { a.key_heads = 1; });
  good.decay = DecayKind::kScalar;
  good.heads = 4;
  good.key_heads = 2;
  good.v_stride = good.out_stride = 32;
  good.beta_stride = good.g_stride = 4;
  good.journal.row_bytes = delta_rule_journal_row_bytes(good);
  good.state.bytes = delta_rule_anchor_bytes(good);
  EXPECT_NO_THROW(bind_delta_rule(device, "op", good));
  refuses([](DeltaRuleArgs& a) { a.key_heads = 0; });
  refuses([](DeltaRuleArgs& a) { a.key_heads = 3; });
  refuses([](DeltaRuleArgs& a) { a.journal.row_bytes -= 4; });
  refuses([](DeltaRuleArgs& a) { a.g_stride = 3; });
}

}  // namespace
}  // namespace weir::test
