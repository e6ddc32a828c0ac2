#include "cli/load_statistics.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace weir::cli {
namespace {

constexpr double kLowest = 1e-6;       // smaller values share the first bucket
constexpr double kPerOctave = 1024;    // buckets
constexpr size_t kBuckets = 60 << 10;  // up to 1e12

}  // namespace

size_t Distribution::bucket_of(double value) {
  if (value <= kLowest) return 0;
  return std::min(static_cast<size_t>(std::log2(value / kLowest) * kPerOctave), kBuckets - 1);
}

double Distribution::middle_of(size_t bucket) {
  return kLowest * std::exp2((static_cast<double>(bucket) + 0.5) / kPerOctave);
}

void Distribution::add(double value) {
  ++count_;
  sum_ += value;
  if (buckets_.empty() && values_.size() < kExact) {
    values_.push_back(value);
    return;
  }
  if (buckets_.empty()) {
    buckets_.resize(kBuckets);
    for (const double earlier : values_) ++buckets_[bucket_of(earlier)];
    values_ = {};
  }
  ++buckets_[bucket_of(value)];
}

double Distribution::mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }

double Distribution::at_rank(const std::vector<double>& sorted, int64_t rank) const {
  if (buckets_.empty()) return sorted[static_cast<size_t>(rank)];
  size_t bucket = 0;
  for (int64_t below = buckets_[0]; below <= rank; below += buckets_[bucket]) ++bucket;
  return middle_of(bucket);
}

double Distribution::percentile(double p) const {
  if (count_ == 0) return 0;
  std::vector<double> sorted = values_;
  std::sort(sorted.begin(), sorted.end());
  const double position = p / 100 * static_cast<double>(count_ - 1);
  const auto rank = static_cast<int64_t>(position);
  const double low = at_rank(sorted, rank);
  const double high = at_rank(sorted, std::min(rank + 1, count_ - 1));
  return low + (high - low) * (position - static_cast<double>(rank));
}

std::string_view load_failure_name(LoadFailure failure) {
  switch (failure) {
    case LoadFailure::kNone:
      return "none";
    case LoadFailure::kConnect:
      return "connect";
    case LoadFailure::kTimeout:
      return "timeout";
    case LoadFailure::kClosed:
      return "closed";
    case LoadFailure::kStatus:
      return "http";
    case LoadFailure::kMalformed:
      return "malformed";
    case LoadFailure::kErrorEvent:
      return "error event";
    case LoadFailure::kEmpty:
      return "empty";
    case LoadFailure::kCancelled:
      return "cancelled";
  }
  return "";
}

std::optional<double> LoadRecord::tpot() const {
  if (output_tokens < 2) return std::nullopt;
  return (e2e - ttft) / static_cast<double>(output_tokens - 1);
}

bool GoodputLimits::good(const LoadRecord& record) const {
  return record.ttft <= ttft.value_or(record.ttft) && record.e2e <= e2e.value_or(record.e2e) &&
         (!tpot || record.tpot().value_or(0) <= *tpot);
}

GoodputLimits parse_goodput(std::string_view text) {
  GoodputLimits out;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const size_t colon = part.find(':');
    const std::string_view name = part.substr(0, colon);
    std::optional<double>* limit = name == "ttft"   ? &out.ttft
                                   : name == "tpot" ? &out.tpot
                                   : name == "e2e"  ? &out.e2e
                                                    : nullptr;
    const std::string_view number = colon == part.npos ? std::string_view() : part.substr(colon + 1);
    double ms = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), ms);
    if (limit == nullptr || error != std::errc() || end != number.data() + number.size() || !(ms > 0) ||
        !std::isfinite(ms)) {
      fail("--goodput: expected ttft:MS, tpot:MS or e2e:MS, found ", printable(part));
    }
    *limit = ms;
  }
  return out;
}

void LoadTally::add(const LoadRecord& record) {
  if (record.failure == LoadFailure::kCancelled) {
    ++cancelled;
    return;
  }
  if (record.failure != LoadFailure::kNone) {
    ++failed;
    std::string kind(load_failure_name(record.failure));
    if (record.failure == LoadFailure::kStatus) kind += concat(" ", record.status);
    if (first_failure.empty()) first_failure = concat(kind, ": ", record.message);
    ++failures[std::move(kind)];
    return;
  }
  ++completed;
  good += limits.any() && limits.good(record);
  input_tokens += record.input_tokens;
  output_tokens += record.output_tokens;
  uncounted += !record.counted;
  told_cached += record.cached_tokens.has_value();
  cached_tokens += record.cached_tokens.value_or(0);
  ttft.add(record.ttft);
  e2e.add(record.e2e);
  if (const std::optional<double> each = record.tpot()) tpot.add(*each);
  for (const double gap : record.gaps) itl.add(gap);
}

}  // namespace weir::cli
