// Text in Prometheus' exposition format, version 0.0.4.
// https://prometheus.io/docs/instrumenting/exposition_formats/
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "engine/histogram.h"

namespace weir {

class PrometheusText {
 public:
  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";
  using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  // Samples of a family follow it at once. `name` has no prefix: "weir_" is put in front.
  void counter(std::string_view name, std::string_view help) { family(name, "counter", help); }
  void gauge(std::string_view name, std::string_view help) { family(name, "gauge", help); }
  void sample(double value, Labels labels = {});
  // Families of one sample.
  void counter(std::string_view name, std::string_view help, double value);
  void gauge(std::string_view name, std::string_view help, double value);
  void histogram(std::string_view name, std::string_view help, const Histogram& histogram);

  const std::string& text() const { return text_; }

 private:
  void family(std::string_view name, std::string_view type, std::string_view help);
  void line(std::string_view suffix, double value, Labels labels);

  std::string text_, name_;
};

}  // namespace weir
