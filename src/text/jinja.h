// Jinja templates as chat models use them: a sandboxed interpreter of the Jinja 3.1 language with Python's semantics,
// without access to files or to anything but the given variables. Every template ends: see Limits.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_runtime.h"
#include "text/jinja_text.h"
#include "text/jinja_value.h"

namespace weir::jinja {

struct MacroBody;

using Variables = std::vector<std::pair<std::string, Value>>;

// Compiled once; rendering doesn't change it, so that threads may share it.
class Template {
 public:
  // `name` is for messages. Environment: trim_blocks, lstrip_blocks, break and continue, the generation tag, tojson as
  // json.dumps with ensure_ascii=False. TemplateError for bad syntax.
  static Template compile(std::string name, std::string_view source, Limits limits = {});

  // `now` is what strftime_now sees. TemplateError.
  Text render(const Variables& variables, const std::tm& now) const;

 private:
  std::string name_;
  Limits limits_;
  std::shared_ptr<const MacroBody> body_;
};

}  // namespace weir::jinja
