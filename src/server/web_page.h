// The web page of GET /, as one file that needs nothing else. Its sources are in src/server/web; the build puts them
// together (cmake/web_page.cmake).
#pragma once

#include <string_view>

namespace weir {

std::string_view web_page();  // HTML in UTF-8: text/html; charset=utf-8

// The value of the header Content-Security-Policy that the page is to be sent with: this page's own script and style,
// by their hashes, requests to this server, and nothing else.
std::string_view web_page_policy();

}  // namespace weir
