// Server-sent events: the bytes of streams in all dialects.
// https://html.spec.whatwg.org/multipage/server-sent-events.html
#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <string_view>

namespace weir::sse {

// Appends "event: NAME\ndata: JSON\n\n", without the first line when the name is empty. JSON has no line breaks.
void append(std::string& out, std::string_view name, const boost::json::object& data);

}  // namespace weir::sse
