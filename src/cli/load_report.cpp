#include "cli/load_report.h"

#include <boost/json/serialize.hpp>
#include <cstdio>

#include "base/error.h"
#include "cli/options.h"

namespace weir::cli {
namespace {

namespace json = boost::json;

double rate(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }
double rate(int64_t count, double seconds) { return rate(static_cast<double>(count), seconds); }

void add_settings(json::object& out, const LoadSettings& settings) {
  const LoadSchedule& schedule = settings.schedule;
  out["url"] = settings.url;
  out["model"] = settings.request.model;
  out["endpoint"] = settings.request.chat ? "chat" : "completions";
  out["prompts"] = settings.prompts;
  out["max_tokens"] = settings.max_tokens;
  out["load"] = schedule.rate > 0 ? "open" : "closed";
  out["request_rate"] = schedule.rate > 0 ? json::value(schedule.rate) : json::value(nullptr);
  out["concurrency"] = schedule.rate > 0 ? json::value(nullptr) : json::value(schedule.concurrency);
  out["warmup"] = settings.warmup;
  out["temperature"] = settings.request.temperature;
  out["ignore_eos"] = settings.request.ignore_eos;
  out["seed"] = schedule.seed;
}

void add_distribution(json::object& out, const std::string& name, const Distribution& values) {
  const auto add = [&](std::string_view statistic, double value) {
    // Nothing was measured, which is not a time of 0.
    out[concat(statistic, "_", name)] = values.count() > 0 ? json::value(value) : json::value(nullptr);
  };
  add("mean", values.mean());
  add("median", values.percentile(50));
  add("p90", values.percentile(90));
  add("p99", values.percentile(99));
}

std::string cell(const json::object& report, const std::string& key, int places) {
  const json::value& value = report.at(key);
  return value.is_null() ? "-" : decimals(value.to_number<double>(), places);
}

std::string text_of(const json::value& value) {
  if (value.is_string()) return std::string(value.as_string());
  if (value.is_null()) return "";
  if (value.is_double()) return concat(value.as_double());
  if (!value.is_object()) return json::serialize(value);
  std::string out;
  for (const auto& [key, count] : value.as_object()) {
    out += concat(out.empty() ? "" : "; ", std::string_view(key), " ", json::serialize(count));
  }
  return out;
}

std::string quoted_for_csv(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == text.npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

std::string load_words(const json::object& report) {
  if (report.at("load").as_string() == "open") {
    return concat("open load, ", text_of(report.at("request_rate")), " arrivals/s");
  }
  return concat("closed load of ", text_of(report.at("concurrency")));
}

std::string cached_words(const json::object& report) {
  const json::value& cached = report.at("total_cached_tokens");
  if (cached.is_null()) return "the server does not say how many cached";
  return concat(text_of(cached), " cached, ", cell(report, "cached_percent", 1), " %");
}

std::string goodput_words(const json::object& report) {
  if (report.at("request_goodput").is_null()) return "";
  return concat("goodput      ", cell(report, "request_goodput", 2), " requests/s within ",
                text_of(report.at("goodput_limits")), " ms\n");
}

}  // namespace

json::object load_report(const LoadSettings& settings, const LoadRun& run) {
  const LoadTally& tally = run.tally;
  json::object out;
  add_settings(out, settings);
  out["interrupted"] = run.interrupted;
  out["completed"] = tally.completed;
  out["failed"] = tally.failed;
  out["cancelled"] = tally.cancelled;
  json::object failures;
  for (const auto& [kind, count] : tally.failures) failures[kind] = count;
  out["failures"] = std::move(failures);
  out["first_failure"] = tally.first_failure;
  out["duration"] = run.seconds;
  out["max_in_flight"] = tally.most_in_flight;
  out["total_input_tokens"] = tally.input_tokens;
  out["total_output_tokens"] = tally.output_tokens;
  out["requests_without_usage"] = tally.uncounted;
  const bool told = tally.told_cached > 0;
  out["total_cached_tokens"] = told ? json::value(tally.cached_tokens) : json::value(nullptr);
  out["cached_percent"] = told ? json::value(100 * rate(tally.cached_tokens, static_cast<double>(tally.input_tokens)))
                               : json::value(nullptr);
  out["request_throughput"] = rate(tally.completed, run.seconds);
  out["input_throughput"] = rate(tally.input_tokens, run.seconds);
  out["output_throughput"] = rate(tally.output_tokens, run.seconds);
  out["total_token_throughput"] = rate(tally.input_tokens + tally.output_tokens, run.seconds);
  out["goodput_limits"] = settings.goodput;
  out["request_goodput"] = tally.limits.any() ? json::value(rate(tally.good, run.seconds)) : json::value(nullptr);
  add_distribution(out, "ttft_ms", tally.ttft);
  add_distribution(out, "tpot_ms", tally.tpot);
  add_distribution(out, "itl_ms", tally.itl);
  add_distribution(out, "e2el_ms", tally.e2e);
  add_distribution(out, "client_chunk_us", run.check.chunk_us);
  out["client_clock"] = run.check.kernel_clock ? "kernel" : "event loop";
  out["client_cpu_percent"] = 100 * rate(run.check.cpu_seconds, run.seconds);
  return out;
}

std::string load_table(const json::object& r) {
  const auto text = [&](const char* key) { return text_of(r.at(key)); };
  std::string out = concat(text("url"), ", ", text("model"), ", ", text("endpoint"), "; ", text("prompts"), ", ",
                           load_words(r), ", seed ", text("seed"), "\n");
  out += concat("requests     ", text("completed"), " completed, ", text("failed"), " failed",
                r.at("failures").as_object().empty() ? "" : concat(" (", text("failures"), ")"));
  if (r.at("cancelled").as_int64() > 0) out += concat(", ", text("cancelled"), " cancelled");
  out += concat("; ", cell(r, "duration", 2), " s, at most ", text("max_in_flight"), " in flight, ", text("warmup"),
                " for warm-up\n");
  out += concat("tokens       ", text("total_input_tokens"), " in (", cached_words(r), "), ",
                text("total_output_tokens"), " out",
                r.at("requests_without_usage").as_int64() > 0
                    ? concat(" (chunks, not tokens, for ", text("requests_without_usage"), " answers without usage)")
                    : "",
                "\n");
  out += concat("throughput   ", cell(r, "request_throughput", 3), " requests/s, ", cell(r, "input_throughput", 1),
                " tok/s in, ", cell(r, "output_throughput", 1), " tok/s out\n", goodput_words(r), "\n");
  char line[160];
  std::snprintf(line, sizeof line, "%-8s %12s %12s %12s %12s\n", "ms", "mean", "median", "p90", "p99");
  out += line;
  for (const auto& [name, key] :
       {std::pair("TTFT", "ttft_ms"), {"TPOT", "tpot_ms"}, {"ITL", "itl_ms"}, {"E2E", "e2el_ms"}}) {
    std::snprintf(line, sizeof line, "%-8s %12s %12s %12s %12s\n", name, cell(r, concat("mean_", key), 2).c_str(),
                  cell(r, concat("median_", key), 2).c_str(), cell(r, concat("p90_", key), 2).c_str(),
                  cell(r, concat("p99_", key), 2).c_str());
    out += line;
  }
  return out + concat("\nthis client  ", cell(r, "median_client_chunk_us", 0), " us median, ",
                      cell(r, "p99_client_chunk_us", 0), " us p99 from bytes at the socket (", text("client_clock"),
                      "'s clock) to their record; ", cell(r, "client_cpu_percent", 1), " % of a processor\n");
}

std::string load_csv(const json::object& report) {
  std::string names, values;
  for (const auto& [key, value] : report) {
    names += concat(names.empty() ? "" : ",", std::string_view(key));
    values += concat(names.size() == key.size() ? "" : ",", quoted_for_csv(text_of(value)));
  }
  return concat(names, "\n", values, "\n");
}

std::string load_state_line(const LoadTally& tally, int64_t in_flight, int64_t requests, double seconds) {
  return concat(tally.completed + tally.failed, requests > 0 ? concat(" of ", requests) : "", " requests, ",
                tally.failed > 0 ? concat(tally.failed, " failed, ") : "", in_flight, " in flight, ",
                decimals(rate(tally.output_tokens, seconds), 1), " tok/s");
}

}  // namespace weir::cli
