// What answers cost, as OpenAI's objects.
#pragma once

#include <boost/json/object.hpp>
#include <span>

#include "server/answer.h"
#include "server/openai.h"

namespace weir::openai {

// Of all answers of the job, ended.
boost::json::object usage_of(const Job& job, std::span<const Answer> answers);
// Of all answers together; times are those of the slowest.
boost::json::object timings_of(std::span<const Answer> answers);

}  // namespace weir::openai
