#include "text/tokenizer_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "text/tokenizer_unicode.h"

namespace weir {
namespace {

// Steps that one match may take, and KiB of backtracking memory. A million-letter piece needs some millions of steps.
constexpr uint32_t kMatchLimit = 100'000'000;
constexpr uint32_t kHeapLimitKib = 1 << 20;
// Compiled code keeps its backtracking points on a stack of its own; only what is touched costs memory.
constexpr size_t kJitStackStart = 64 << 10;
constexpr size_t kJitStackMax = size_t{256} << 20;

struct JitStack {
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);
  ~JitStack() { pcre2_jit_stack_free(stack); }
};

pcre2_jit_stack* jit_stack(void*) {
  thread_local JitStack stack;
  return stack.stack;
}

std::string message_of(int code) {
  PCRE2_UCHAR text[128];
  if (pcre2_get_error_message(code, text, sizeof text) < 0) return concat("PCRE2 error ", code);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

Regex::Regex(std::string_view pattern, RegexDialect dialect, const std::string& where) : where_(where) {
  const std::string translated = pcre2_pattern(pattern, dialect, where);
  uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  if (dialect == RegexDialect::kOniguruma) options |= PCRE2_MULTILINE;
  int error = 0;
  size_t at = 0;
  pcre2_compile_context* compile = pcre2_compile_context_create(nullptr);
  if (compile == nullptr) throw std::bad_alloc();
  pcre2_set_newline(compile, PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(compile, 100);
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options, &error, &at, compile);
  pcre2_compile_context_free(compile);
  if (code == nullptr) {
    fail(where, ": regular expression ", printable(pattern), ": ", message_of(error), " (at byte ", at, " of ",
         printable(translated), ")");
  }
  code_ = code;
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without it (no executable memory) matching is slower, not different
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  if (context == nullptr) {
    pcre2_code_free(code);
    throw std::bad_alloc();
  }
  pcre2_set_match_limit(context, kMatchLimit);
  pcre2_set_heap_limit(context, kHeapLimitKib);
  pcre2_jit_stack_assign(context, jit_stack, nullptr);
  context_ = context;
}

Regex::~Regex() {
  pcre2_match_context_free(static_cast<pcre2_match_context*>(context_));
  pcre2_code_free(static_cast<pcre2_code*>(code_));
}

Regex::Search::Search(const Regex& regex, std::string_view text) : regex_(&regex), text_(text) {
  data_ = pcre2_match_data_create_from_pattern(static_cast<const pcre2_code*>(regex.code_), nullptr);
  if (data_ == nullptr) throw std::bad_alloc();
}

Regex::Search::~Search() { pcre2_match_data_free(static_cast<pcre2_match_data*>(data_)); }

void Regex::Search::reset(std::string_view text) {
  text_ = text;
  from_ = 0;
  last_end_ = std::string_view::npos;
}

bool Regex::Search::next(RegexMatch& match) {
  const auto* code = static_cast<const pcre2_code*>(regex_->code_);
  auto* data = static_cast<pcre2_match_data*>(data_);
  auto* context = static_cast<pcre2_match_context*>(regex_->context_);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text_.data() == nullptr ? "" : text_.data());
  while (from_ <= text_.size()) {
    int found = pcre2_match(code, subject, text_.size(), from_, PCRE2_NO_UTF_CHECK, data, context);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      found = pcre2_match(code, subject, text_.size(), from_, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, context);
    }
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) fail(regex_->where_, ": regular expression gives up on this text: ", message_of(found));
    const size_t* ends = pcre2_get_ovector_pointer(data);
    match = {ends[0], ends[1]};
    if (match.begin > match.end) match.begin = match.end;  // \K in a lookahead
    if (match.begin == match.end && match.end == last_end_) {
      from_ += from_ < text_.size() ? utf8_length(text_[from_]) : 1;
      continue;
    }
    from_ = last_end_ = match.end;
    return true;
  }
  from_ = text_.size() + 1;
  return false;
}

std::string Regex::replace_all(std::string_view text, std::string_view content) const {
  std::string out;
  size_t done = 0;
  Search search(*this, text);
  for (RegexMatch match; search.next(match); done = match.end) {
    out += text.substr(done, match.begin - done);
    out += content;
  }
  return out += text.substr(done);
}

}  // namespace weir
