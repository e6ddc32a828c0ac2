#include "text/tokenizer_decoder.h"

#include "text/tokenizer_regex.h"

namespace weir {
namespace {

using Kind = DecoderStep::Kind;

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// The byte of "<0xE2>", or -1.
int byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const int high = hex_digit(token[3]), low = hex_digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string replaced(const DecoderStep& step, std::string_view text) {
  if (step.regex) return step.regex->replace_all(text, step.content);
  std::string out;
  while (true) {
    const size_t at = text.find(step.pattern);
    if (at == std::string_view::npos) break;
    out += text.substr(0, at);
    out += step.content;
    text.remove_prefix(at + step.pattern.size());
  }
  return out += text;
}

}  // namespace

DecodeRun::DecodeRun(const Decoder& decoder, bool eager) : decoder_(&decoder), eager_(eager), states_(decoder.size()) {}

void DecodeRun::push(std::string_view token, std::string& out) { feed(0, token, false, out); }

void DecodeRun::finish(std::string& out) {
  for (size_t step = 0; step < states_.size(); ++step) {
    State& state = states_[step];
    const Kind kind = (*decoder_)[step].kind;
    if (kind == Kind::kByteFallback) {
      flush_bytes(step, out);
    } else if (kind == Kind::kBytes) {
      std::string rest;
      state.repair.finish(rest);
      if (!rest.empty()) feed(step + 1, rest, state.started, out);
    }
    state = {};  // characters that kStrip holds at the end are what it strips
  }
}

void DecodeRun::feed(size_t step, std::string_view text, bool continues, std::string& out) {
  if (step == states_.size()) {
    out += text;
    return;
  }
  const DecoderStep& what = (*decoder_)[step];
  State& state = states_[step];
  switch (what.kind) {
    case Kind::kBytes: {
      std::string valid;
      state.repair.push(text, valid);
      const bool more = state.started;
      if (valid.empty()) return;
      state.started = true;
      return feed(step + 1, valid, more, out);
    }
    case Kind::kReplace:
      return feed(step + 1, replaced(what, text), continues, out);
    case Kind::kByteFallback:
      return byte_fallback(step, text, continues, out);
    case Kind::kFuse: {
      const bool more = state.started;
      state.started = true;
      return feed(step + 1, text, more, out);
    }
    case Kind::kStrip:
      return strip(step, text, continues, out);
    case Kind::kMetaspace: {
      const bool first = !state.started || (continues && state.at_front);
      state.started = true;
      state.at_front = first;
      std::string spaced;
      for (size_t at = 0; at < text.size();) {
        if (text.substr(at).starts_with(what.pattern)) {
          if (!first || !what.drop_first) spaced += ' ';
          at += what.pattern.size();
        } else {
          spaced += text[at++];
        }
      }
      return feed(step + 1, spaced, continues, out);
    }
    case Kind::kSpaces: {
      if (state.started && !continues) feed(step + 1, " ", true, out);
      state.started = true;
      return feed(step + 1, text, continues, out);
    }
  }
}

void DecodeRun::byte_fallback(size_t step, std::string_view text, bool continues, std::string& out) {
  State& state = states_[step];
  const int byte = continues ? -1 : byte_of(text);
  if (byte < 0) {
    flush_bytes(step, out);
    return feed(step + 1, text, continues, out);
  }
  state.held += static_cast<char>(byte);
  if (eager_ && is_utf8(state.held)) flush_bytes(step, out);
}

void DecodeRun::flush_bytes(size_t step, std::string& out) {
  std::string held;
  held.swap(states_[step].held);
  if (held.empty()) return;
  if (is_utf8(held)) return feed(step + 1, held, false, out);
  for (size_t i = 0; i < held.size(); ++i) feed(step + 1, kReplacementCharacter, false, out);
}

void DecodeRun::strip(size_t step, std::string_view text, bool continues, std::string& out) {
  const DecoderStep& what = (*decoder_)[step];
  State& state = states_[step];
  if (!continues) {
    state.held.clear();  // the string before is over: these were its trailing characters to strip
    state.stripped = 0;
    state.at_front = true;
  }
  while (state.at_front && state.stripped < what.start && text.starts_with(what.pattern)) {
    text.remove_prefix(what.pattern.size());
    ++state.stripped;
  }
  if (!text.empty()) state.at_front = false;
  if (what.stop == 0) return feed(step + 1, text, continues, out);
  std::string joined = state.held;
  joined += text;
  size_t end = joined.size();
  for (size_t i = 0; i < what.stop && std::string_view(joined).substr(0, end).ends_with(what.pattern); ++i) {
    end -= what.pattern.size();
  }
  state.held = joined.substr(end);
  feed(step + 1, std::string_view(joined).substr(0, end), continues, out);
}

}  // namespace weir
