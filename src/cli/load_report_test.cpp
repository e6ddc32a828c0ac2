#include "cli/load_report.h"

#include <gtest/gtest.h>
#include <boost/json/serialize.hpp>

#include <algorithm>

#include "formats/json.h"

namespace weir::cli {
namespace {

boost::json::object example() {
  LoadSettings settings;
  settings.url = "http://localhost:8000";
  settings.prompts = "random:8,4";
  settings.goodput = "ttft:60";
  settings.request.model = "a, \"b\"";
  settings.schedule.concurrency = 3;
  LoadRun run;
  run.seconds = 2;
  run.tally.limits = parse_goodput(settings.goodput);
  for (const double ttft : {50.0, 70.0}) {
    LoadRecord record;
    record.ttft = ttft;
    record.e2e = ttft + 30;
    record.gaps = {10, 20};
    record.counted = true;
    record.input_tokens = 8;
    record.output_tokens = 4;
    record.cached_tokens = 2;
    run.tally.add(record);
  }
  LoadRecord bad;
  bad.failure = LoadFailure::kTimeout;
  bad.message = "late";
  run.tally.add(bad);
  return load_report(settings, run);
}

TEST(LoadReport, RatesAndTimesAreThoseOfTheRun) {
  const boost::json::object report = example();
  const auto number = [&](const char* key) { return report.at(key).to_number<double>(); };
  EXPECT_EQ(number("completed"), 2);
  EXPECT_EQ(number("failed"), 1);
  EXPECT_EQ(boost::json::serialize(report.at("failures")), R"({"timeout":1})");
  EXPECT_DOUBLE_EQ(number("request_throughput"), 1);
  EXPECT_DOUBLE_EQ(number("output_throughput"), 4);
  EXPECT_DOUBLE_EQ(number("total_token_throughput"), 12);
  EXPECT_DOUBLE_EQ(number("request_goodput"), 0.5);
  EXPECT_DOUBLE_EQ(number("cached_percent"), 25);
  EXPECT_DOUBLE_EQ(number("mean_ttft_ms"), 60);
  EXPECT_DOUBLE_EQ(number("p90_ttft_ms"), 68);
  EXPECT_DOUBLE_EQ(number("median_tpot_ms"), 10);
  EXPECT_DOUBLE_EQ(number("mean_itl_ms"), 15);
  EXPECT_DOUBLE_EQ(number("median_e2el_ms"), 90);
}

TEST(LoadReport, WhatWasNotMeasuredIsNull) {
  const boost::json::object report = load_report({}, {});
  for (const char* key : {"mean_ttft_ms", "p99_itl_ms", "total_cached_tokens", "cached_percent", "request_goodput"}) {
    EXPECT_TRUE(report.at(key).is_null()) << key;
  }
  EXPECT_NE(load_table(report).find("does not say how many cached"), std::string::npos);
}

TEST(LoadReport, TheTableHasEveryKindOfTime) {
  const std::string table = load_table(example());
  for (const char* part : {"closed load of 3", "2 completed, 1 failed (timeout 1)", "16 in (4 cached, 25.0 %), 8 out",
                           "1.000 requests/s, 8.0 tok/s in, 4.0 tok/s out", "0.50 requests/s within ttft:60 ms",
                           "TTFT            60.00        60.00        68.00        69.80"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
  }
}

TEST(LoadReport, CsvIsTwoLinesOfTheSameFields) {
  const std::string csv = load_csv(example());
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 2);
  EXPECT_NE(csv.find(",\"a, \"\"b\"\"\","), std::string::npos) << csv;
  const auto fields = [](std::string_view line) {  // commas outside quotes
    bool quoted = false;
    int64_t count = 1;
    for (const char c : line) {
      if (c == '"') quoted = !quoted;
      count += c == ',' && !quoted;
    }
    return count;
  };
  const size_t end = csv.find('\n');
  EXPECT_EQ(fields(csv.substr(0, end)), static_cast<int64_t>(example().size()));
  EXPECT_EQ(fields(csv.substr(end + 1)), static_cast<int64_t>(example().size()));
}

}  // namespace
}  // namespace weir::cli
