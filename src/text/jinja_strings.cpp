#include "text/jinja_strings.h"

#include <cstring>

namespace weir::jinja {
namespace {

// Builds a text character by character; each new character takes the origin of the one it stands for.
template <class F>
Text map_characters(const Text& text, F f) {
  TextBuilder out;
  text.for_each_run(0, text.size(), [&](std::string_view run, Origin origin) {
    std::string mapped;
    for (size_t at = 0, n = 0; at < run.size(); at += n) f(mapped, decode_at(run, at, &n));
    out.append(mapped, origin);
  });
  return out.take();
}

bool breaks_line(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace

size_t find_first(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found ? static_cast<const char*>(found) - text.data() : std::string_view::npos;
}

size_t find_last(std::string_view text, std::string_view part) {
  const std::string backwards(text.rbegin(), text.rend()), wanted(part.rbegin(), part.rend());
  const size_t at = find_first(backwards, wanted, 0);
  return at == std::string_view::npos ? at : text.size() - at - part.size();
}

Text strip(const Text& text, const Text* characters, bool left, bool right) {
  const std::string& bytes = text.bytes();
  const auto drop = [&](size_t at, size_t* n) {
    const char32_t c = decode_at(bytes, at, n);
    return characters ? characters->bytes().find(bytes.substr(at, *n)) != std::string::npos : is_space(c);
  };
  size_t begin = 0, end = bytes.size(), n = 0;
  while (left && begin < end && drop(begin, &n)) begin += n;
  while (right && end > begin) {
    size_t at = end - 1;
    while (at > begin && (static_cast<unsigned char>(bytes[at]) & 0xC0) == 0x80) --at;
    if (!drop(at, &n)) break;
    end = at;
  }
  return text.slice(begin, end);
}

Text replace(Runtime& runtime, const Text& text, const Text& from, const Text& to, int64_t count) {
  TextBuilder out;
  const std::string& bytes = text.bytes();
  const auto put = [&] {
    runtime.charge(to.size());
    runtime.step();
    out.append(to);
  };
  if (from.empty()) {  // Python puts `to` around every character
    size_t at = 0, n = 0;
    for (; count != 0 && at < bytes.size(); at += n) {
      put();
      --count;
      decode_at(bytes, at, &n);
      out.append(text, at, at + n);
    }
    out.append(text, at, bytes.size());
    if (count != 0) put();
    return out.take();
  }
  size_t at = 0;
  for (size_t found; count != 0 && (found = find_first(bytes, from.bytes(), at)) != std::string::npos; --count) {
    out.append(text, at, found);
    put();
    at = found + from.size();
  }
  out.append(text, at, bytes.size());
  return out.take();
}

std::vector<Text> split(Runtime& runtime, const Text& text, const Text* separator, int64_t most, bool from_right) {
  const std::string& bytes = text.bytes();
  std::vector<std::pair<size_t, size_t>> gaps;  // what separates the parts
  if (separator) {
    if (separator->empty()) runtime.fail("empty separator");
    if (from_right) {
      const std::string backwards(bytes.rbegin(), bytes.rend());
      const std::string wanted(separator->bytes().rbegin(), separator->bytes().rend());
      for (size_t at = 0; static_cast<int64_t>(gaps.size()) != most; at += wanted.size()) {
        at = find_first(backwards, wanted, at);
        if (at == std::string::npos) break;
        gaps.emplace_back(bytes.size() - at - wanted.size(), bytes.size() - at);
        runtime.step();
      }
      std::reverse(gaps.begin(), gaps.end());
    } else {
      for (size_t at = 0; static_cast<int64_t>(gaps.size()) != most; at = gaps.back().second) {
        at = find_first(bytes, separator->bytes(), at);
        if (at == std::string::npos) break;
        gaps.emplace_back(at, at + separator->size());
        runtime.step();
      }
    }
    std::vector<Text> out;
    size_t begin = 0;
    for (const auto& [from, to] : gaps) {
      out.push_back(text.slice(begin, from));
      begin = to;
    }
    out.push_back(text.slice(begin, bytes.size()));
    return out;
  }
  // Words: no empty parts, whitespace around them dropped.
  std::vector<std::pair<size_t, size_t>> words;
  size_t begin = std::string::npos;
  for (size_t at = 0, n = 0; at <= bytes.size(); at += n) {
    const bool end = at == bytes.size() || is_space(decode_at(bytes, at, &n));
    if (end && begin != std::string::npos) {
      words.emplace_back(begin, at);
      begin = std::string::npos;
      runtime.step();
    } else if (!end && begin == std::string::npos) {
      begin = at;
    }
    if (at == bytes.size()) break;
  }
  std::vector<Text> out;
  if (most >= 0 && static_cast<int64_t>(words.size()) > most) {
    if (from_right) {
      const size_t keep = words.size() - most;
      out.push_back(text.slice(0, words[keep - 1].second));
      for (size_t i = keep; i < words.size(); ++i) out.push_back(text.slice(words[i].first, words[i].second));
    } else {
      for (int64_t i = 0; i < most; ++i) out.push_back(text.slice(words[i].first, words[i].second));
      out.push_back(text.slice(words[most].first, bytes.size()));
    }
    return out;
  }
  for (const auto& [from, to] : words) out.push_back(text.slice(from, to));
  return out;
}

std::vector<Text> split_lines(Runtime& runtime, const Text& text, bool keep_ends) {
  std::vector<Text> out;
  const std::string& bytes = text.bytes();
  size_t begin = 0;
  for (size_t at = 0, n = 0; at < bytes.size(); at += n) {
    const char32_t c = decode_at(bytes, at, &n);
    if (!breaks_line(c)) continue;
    if (c == '\r' && at + 1 < bytes.size() && bytes[at + 1] == '\n') ++n;
    out.push_back(text.slice(begin, keep_ends ? at + n : at));
    begin = at + n;
    runtime.step();
  }
  if (begin < bytes.size()) out.push_back(text.slice(begin, bytes.size()));
  return out;
}

Text map_case(const Text& text, Case to) {
  return map_characters(text, [&](std::string& out, char32_t c) { append_case(out, c, to); });
}

Text capitalize(const Text& text) {
  bool first = true;
  return map_characters(text, [&](std::string& out, char32_t c) {
    append_case(out, c, first ? Case::kTitle : Case::kLower);
    first = false;
  });
}

Text title(const Text& text, bool as_method) {
  bool start = true;
  return map_characters(text, [&](std::string& out, char32_t c) {
    append_case(out, c, start ? (as_method ? Case::kTitle : Case::kUpper) : Case::kLower);
    start = as_method ? !is_cased(c) : is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  });
}

Text swap_case(const Text& text) {
  return map_characters(text, [](std::string& out, char32_t c) {
    if (is_upper(c)) return append_case(out, c, Case::kLower);
    if (is_lower(c)) return append_case(out, c, Case::kUpper);
    append_utf8(out, c);
  });
}

Text pad(Runtime& runtime, const Text& text, int64_t left, int64_t right, const Text& fill) {
  const auto limit = static_cast<int64_t>(runtime.limits().output_bytes);
  left = std::max<int64_t>(left, 0);
  right = std::max<int64_t>(right, 0);
  if (left > limit || right > limit) runtime.fail("the padding is longer than ", limit);
  runtime.charge((left + right) * fill.size());
  TextBuilder out;
  for (int64_t i = 0; i < left; ++i) out.append(fill);
  out.append(text);
  for (int64_t i = 0; i < right; ++i) out.append(fill);
  return out.take();
}

Text escape_html(const Text& text) {
  return map_characters(text, [](std::string& out, char32_t c) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        append_utf8(out, c);
    }
  });
}

Text indent(Runtime& runtime, const Text& text, const Text& by, bool first, bool blank) {
  TextBuilder with_newline;  // Jinja's way to keep a newline at the end
  with_newline.append(text);
  with_newline.append("\n", Origin::kTemplate);
  const std::vector<Text> lines = split_lines(runtime, with_newline.take(), false);
  TextBuilder out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n", Origin::kTemplate);
    if (i == 0 ? first : (blank || !lines[i].empty())) {
      runtime.charge(by.size());
      out.append(by);
    }
    out.append(lines[i]);
  }
  return out.take();
}

Text join(Runtime& runtime, const std::vector<Value>& items, const Text& separator) {
  TextBuilder out;
  for (size_t i = 0; i < items.size(); ++i) {
    runtime.step();
    if (i > 0) {
      runtime.charge(separator.size());
      out.append(separator);
    }
    append_text(runtime, items[i], out);
  }
  return out.take();
}

size_t count_of(const Text& text, const Text& part) {
  if (part.empty()) return count_characters(text.bytes()) + 1;
  size_t count = 0;
  for (size_t at = 0; (at = find_first(text.bytes(), part.bytes(), at)) != std::string::npos; at += part.size())
    ++count;
  return count;
}

}  // namespace weir::jinja
