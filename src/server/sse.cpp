#include "server/sse.h"

#include <boost/json/serialize.hpp>

namespace weir::sse {

void append(std::string& out, std::string_view name, const boost::json::object& data) {
  if (!name.empty()) out.append("event: ").append(name).append("\n");
  out.append("data: ").append(boost::json::serialize(data)).append("\n\n");
}

}  // namespace weir::sse
