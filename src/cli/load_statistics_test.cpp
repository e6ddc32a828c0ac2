#include "cli/load_statistics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace weir::cli {
namespace {

// numpy.percentile([15, 20, 35, 40, 50], [0, 25, 50, 90, 99, 100])
TEST(Distribution, PercentilesAreThoseOfNumpy) {
  Distribution values;
  for (const double v : {40, 15, 50, 35, 20}) values.add(v);
  EXPECT_EQ(values.count(), 5);
  EXPECT_DOUBLE_EQ(values.mean(), 32);
  EXPECT_DOUBLE_EQ(values.percentile(0), 15);
  EXPECT_DOUBLE_EQ(values.percentile(25), 20);
  EXPECT_DOUBLE_EQ(values.percentile(50), 35);
  EXPECT_DOUBLE_EQ(values.percentile(90), 46);
  EXPECT_DOUBLE_EQ(values.percentile(99), 49.6);
  EXPECT_DOUBLE_EQ(values.percentile(100), 50);
}

TEST(Distribution, OneValueIsAllPercentilesAndNoneIsZero) {
  Distribution values;
  EXPECT_EQ(values.percentile(50), 0);
  EXPECT_EQ(values.mean(), 0);
  values.add(7);
  EXPECT_EQ(values.percentile(0), 7);
  EXPECT_EQ(values.percentile(99), 7);
}

// Beyond kExact values there are buckets; below it the same values are exact.
TEST(Distribution, ManyValuesAreWithinABucketOfTheTruth) {
  Distribution values;
  const int64_t n = 4 * static_cast<int64_t>(Distribution::kExact);
  for (int64_t i = 0; i < n; ++i)
    values.add(std::exp(static_cast<double>(i * 7919 % n) / static_cast<double>(n) * 20 - 10));
  EXPECT_EQ(values.count(), n);
  for (const double p : {1.0, 10.0, 50.0, 90.0, 99.0, 99.9}) {
    const double truth = std::exp(p / 100 * 20 - 10);
    EXPECT_NEAR(values.percentile(p), truth, 1e-3 * truth) << p;
  }
}

TEST(Distribution, BucketsTakeEveryValue) {
  Distribution values;
  for (size_t i = 0; i <= Distribution::kExact; ++i) values.add(0);
  values.add(1e300);
  EXPECT_NEAR(values.percentile(50), 0, 1e-5);
  EXPECT_GT(values.percentile(100), 1e11);
}

LoadRecord record(double ttft, double e2e, int64_t tokens) {
  LoadRecord out;
  out.ttft = ttft;
  out.e2e = e2e;
  out.output_tokens = tokens;
  out.counted = true;
  return out;
}

TEST(LoadRecord, TheFirstTokenIsNoPartOfTpot) {
  EXPECT_DOUBLE_EQ(*record(100, 190, 10).tpot(), 10);
  EXPECT_EQ(record(100, 100, 1).tpot(), std::nullopt);
}

TEST(Goodput, AllLimitsMustBeKept) {
  const GoodputLimits limits = parse_goodput("ttft:100,tpot:9.5");
  EXPECT_TRUE(limits.good(record(100, 185, 11)));
  EXPECT_FALSE(limits.good(record(101, 186, 11)));
  EXPECT_FALSE(limits.good(record(100, 200, 11)));
  EXPECT_TRUE(limits.good(record(100, 100, 1)));
  EXPECT_FALSE(parse_goodput("e2e:10").good(record(5, 11, 2)));
  EXPECT_FALSE(parse_goodput("").any());
}

TEST(Goodput, RefusesWhatItDoesNotKnow) {
  for (const char* bad : {"itl:5", "ttft", "ttft:", "ttft:x", "ttft:-1", "ttft:0", "ttft:5ms", "ttft:inf", ",ttft:5"}) {
    EXPECT_THROW(parse_goodput(bad), Error) << bad;
  }
}

TEST(LoadTally, CountsWhatCompletedAndWhatFailed) {
  LoadTally tally;
  tally.limits = parse_goodput("e2e:150");
  LoadRecord first = record(50, 100, 6);
  first.gaps = {10, 10, 30};
  first.input_tokens = 40;
  first.cached_tokens = 16;
  tally.add(first);
  tally.add(record(70, 200, 1));
  LoadRecord bad;
  bad.failure = LoadFailure::kStatus;
  bad.status = 503;
  bad.message = "busy";
  tally.add(bad);
  tally.add(bad);
  bad.failure = LoadFailure::kCancelled;
  tally.add(bad);
  EXPECT_EQ(tally.completed, 2);
  EXPECT_EQ(tally.good, 1);
  EXPECT_EQ(tally.failed, 2);
  EXPECT_EQ(tally.cancelled, 1);
  EXPECT_EQ(tally.failures.at("http 503"), 2);
  EXPECT_EQ(tally.first_failure, "http 503: busy");
  EXPECT_EQ(tally.input_tokens, 40);
  EXPECT_EQ(tally.output_tokens, 7);
  EXPECT_EQ(tally.cached_tokens, 16);
  EXPECT_EQ(tally.told_cached, 1);
  EXPECT_EQ(tally.ttft.count(), 2);
  EXPECT_EQ(tally.tpot.count(), 1);
  EXPECT_EQ(tally.itl.count(), 3);
}

}  // namespace
}  // namespace weir::cli
