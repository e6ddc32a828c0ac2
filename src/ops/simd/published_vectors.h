// Published operator vectors (tests/fixtures/kimi_k3/unit), for tests.
#pragma once

#include <boost/json.hpp>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace weir {

inline boost::json::value published_vectors(const std::string& file_name) {
  std::ifstream file(WEIR_FIXTURES "/kimi_k3/unit/" + file_name);
  std::stringstream text;
  text << file.rdbuf();
  return boost::json::parse(text.str());
}

inline std::vector<float> floats(const boost::json::value& numbers) {
  std::vector<float> out;
  for (const auto& number : numbers.as_array()) out.push_back(static_cast<float>(number.to_number<double>()));
  return out;
}

}  // namespace weir
