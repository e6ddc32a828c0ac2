#include "server/prometheus.h"

#include "base/error.h"

namespace weir {
namespace {

std::string escaped(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '\n') {
      out += "\\n";
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out;
}

}  // namespace

void PrometheusText::family(std::string_view name, std::string_view type, std::string_view help) {
  name_ = concat("weir_", name);
  text_ += concat("# HELP ", name_, " ", help, "\n# TYPE ", name_, " ", type, "\n");
}

void PrometheusText::line(std::string_view suffix, double value, Labels labels) {
  text_ += concat(name_, suffix);
  char before = '{';
  for (const auto& [key, label] : labels) {
    text_ += concat(before, key, "=\"", escaped(label), "\"");
    before = ',';
  }
  if (labels.size() > 0) text_ += '}';
  text_ += concat(" ", value, "\n");
}

void PrometheusText::sample(double value, Labels labels) { line("", value, labels); }

void PrometheusText::counter(std::string_view name, std::string_view help, double value) {
  counter(name, help);
  sample(value);
}

void PrometheusText::gauge(std::string_view name, std::string_view help, double value) {
  gauge(name, help);
  sample(value);
}

void PrometheusText::histogram(std::string_view name, std::string_view help, const Histogram& histogram) {
  family(name, "histogram", help);
  int64_t below = 0;
  for (size_t i = 0; i < histogram.bounds().size(); ++i) {
    below += histogram.counts()[i];
    line("_bucket", static_cast<double>(below), {{"le", concat(histogram.bounds()[i])}});
  }
  line("_bucket", static_cast<double>(histogram.count()), {{"le", "+Inf"}});
  line("_sum", histogram.sum(), {});
  line("_count", static_cast<double>(histogram.count()), {});
}

}  // namespace weir
