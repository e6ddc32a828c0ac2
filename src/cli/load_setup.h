// What `weir load` asks a server before it measures: its model, and how long words are in tokens.
#pragma once

#include <string>

#include "cli/load_client.h"

namespace weir::cli {

// The first model of /v1/models. Error: no answer, or none that names one.
std::string served_model(LoadClient& client, const std::string& url);

// Words sized by the server's /tokenize: those that are one token each where there are enough. Without /tokenize, sized
// by the usage of two short requests. Error: neither works.
WordList sized_words(LoadClient& client, const LoadRequestOptions& request);

}  // namespace weir::cli
