#include "text/jinja.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "formats/json.h"

namespace weir::jinja {
namespace {

std::tm fixture_time() {
  std::tm now{};
  now.tm_year = 125;
  now.tm_mon = 6;
  now.tm_mday = 6;
  now.tm_hour = 9;
  now.tm_min = 5;
  now.tm_sec = 3;
  now.tm_yday = 186;
  return now;
}

Text render(std::string_view source, const Variables& variables = {}, Limits limits = {}) {
  return Template::compile("test", source, limits).render(variables, fixture_time());
}

std::string error_of(std::string_view source, const Variables& variables = {}, Limits limits = {}) {
  try {
    const Text text = render(source, variables, limits);
    return "rendered " + text.bytes().substr(0, 100);
  } catch (const TemplateError& error) {
    return error.what();
  }
}

// Bytes of values in brackets, of the template outside.
std::string marked(const Text& text) {
  std::string out;
  text.for_each_run(0, text.size(), [&](std::string_view run, Origin origin) {
    out += origin == Origin::kValue ? "[" + std::string(run) + "]" : std::string(run);
  });
  return out;
}

std::string marked(std::string_view source) {
  const boost::json::value user = {{"s", "  ab Cd  "}, {"n", 5}, {"list", {"x", "y"}}, {"d", {{"k", "v"}}}};
  Variables variables;
  for (const auto& [name, value] : user.as_object()) variables.emplace_back(name, from_json(value));
  return marked(render(source, variables));
}

TEST(Jinja, RendersWhatPythonsJinjaRenders) {
  const boost::json::value file = read_json_file(WEIR_FIXTURES "/jinja/cases.json");
  Variables variables;
  for (const auto& [name, value] : file.at("variables").as_object()) variables.emplace_back(name, from_json(value));
  const boost::json::array& cases = file.at("cases").as_array();
  EXPECT_GT(cases.size(), 500u);
  for (const boost::json::value& one : cases) {
    const std::string source(one.at("template").as_string());
    const boost::json::value* rendered = one.as_object().if_contains("rendered");
    try {
      const Text text = render(source, variables);
      EXPECT_TRUE(rendered) << source << "\nrendered " << text.bytes();
      if (rendered) {
        EXPECT_EQ(text.bytes(), std::string_view(rendered->as_string())) << source;
      }
    } catch (const TemplateError& error) {
      EXPECT_FALSE(rendered) << source << "\n" << error.what();
    }
  }
}

TEST(JinjaOrigin, LiteralsAreTheTemplatesAndVariablesAreValues) {
  EXPECT_EQ(marked("<a>{{ s }}{{ 'lit' }}{{ n }}</a>"), "<a>[  ab Cd  ]lit5</a>");
}

TEST(JinjaOrigin, FiltersKeepTheOriginOfEachByte) {
  EXPECT_EQ(marked("{{ s | trim }}"), "[ab Cd]");
  EXPECT_EQ(marked("{{ ('<' ~ s ~ '>') | upper }}"), "<[  AB CD  ]>");
  EXPECT_EQ(marked("{{ ('<' ~ s ~ '>') | title }}"), "<[  Ab Cd  ]>");
  EXPECT_EQ(marked("{{ s | replace('b', '*') }}"), "[  a]*[ Cd  ]");
  EXPECT_EQ(marked("{{ 'a-b' | replace('-', s) }}"), "a[  ab Cd  ]b");
  EXPECT_EQ(marked("{{ list | join('|') }}"), "[x]|[y]");
  EXPECT_EQ(marked("{{ '%s=%5d' | format(s | trim, n) }}"), "[ab Cd]=    5");
  EXPECT_EQ(marked("{{ (s | trim)[1:4] ~ '|' ~ s[2] }}"), "[b C]|[a]");
  EXPECT_EQ(marked("{{ s | trim | e | indent }}"), "[ab Cd]");
  EXPECT_EQ(marked("{{ (s | trim).split(' ') | last }}"), "[Cd]");
  EXPECT_EQ(marked("{{ (s | trim) * 2 }}{{ 'x' * 2 }}"), "[ab Cdab Cd]xx");
  EXPECT_EQ(marked("{{ (s | trim).center(8, '*') }}"), "*[ab Cd]**");
}

TEST(JinjaOrigin, PunctuationOfJsonIsNotMarkup) {
  EXPECT_EQ(marked("{{ {'lit': s | trim} | tojson }}"), "[{\"]lit[\": \"ab Cd\"}]");
  EXPECT_EQ(marked("{{ d | tojson }}"), "[{\"k\": \"v\"}]");
}

TEST(JinjaOrigin, SurvivesMacrosBlocksAndNamespaces) {
  EXPECT_EQ(marked("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(s | trim) }}"), "<[ab Cd]>");
  EXPECT_EQ(marked("{% set x %}<{{ s | trim }}>{% endset %}{{ x }}"), "<[ab Cd]>");
  EXPECT_EQ(marked("{% filter upper %}a{{ list[0] }}{% endfilter %}"), "A[X]");
  EXPECT_EQ(
      marked("{% set n = namespace(t='') %}{% for x in list %}{% set n.t = n.t ~ '+' ~ x %}{% endfor %}{{ n.t }}"),
      "+[x]+[y]");
  EXPECT_EQ(marked("{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}"), "[k]=[v]");
}

TEST(JinjaErrors, NameTheTemplateAndTheLine) {
  EXPECT_EQ(error_of("a\nb\n{{ missing.x }}"), "test:3: 'missing' is undefined");
  EXPECT_EQ(error_of("a\n{% if x %}"), "test:2: expected '{% endif %}'");
  EXPECT_EQ(error_of("\n\n{{ 'abc }}"), "test:3: a string is not closed");
  EXPECT_EQ(error_of("{{ x | nothing }}"), "test:1: no filter named 'nothing'");
  EXPECT_EQ(error_of("\n{% do x %}"), "test:2: the tag 'do' is unknown or not allowed here");
  EXPECT_EQ(error_of("{{ 1 }}\n{{ raise_exception('no ' ~ 1) }}"), "test:2: no 1");
}

TEST(JinjaErrors, SayWhetherTheTemplateRaisedThem) {
  for (const bool raised : {true, false}) {
    try {
      render(raised ? "{{ raise_exception('x') }}" : "{{ 1 / 0 }}");
      FAIL();
    } catch (const TemplateError& error) {
      EXPECT_EQ(error.raised_by_template(), raised);
    }
  }
}

TEST(JinjaErrors, RefuseBytesThatAreNotText) { EXPECT_EQ(error_of("a\xff"), "test: the template is not UTF-8"); }

// Each would run or grow without an end, or exhaust the stack.
TEST(JinjaBudget, EndsTemplatesThatWouldNot) {
  const std::pair<std::string, std::string> kCases[] = {
      {"{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "deep"},
      {"{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
       "bytes of strings"},
      {"{% set n = namespace(s=[1]) %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
       "bytes of strings"},
      {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "more than"},
      {"{% macro f(n) %}{{ f(n-1) ~ f(n-1) if n else '' }}{% endmacro %}{{ f(40) }}", "steps"},
      {"{{ 'x' * 99999999999 }}", "too long"},
      {"{{ [1] * 99999999999 }}", "too long"},
      {"{{ '%9999999d' | format(1) }}", "width"},
      {"{{ 'x' | center(99999999999) }}", "longer"},
      {"{{ range(999999999) }}", "at most"},
      {"{% set n = namespace(v=[]) %}{% for i in range(9999) %}{% set n.v = [n.v] %}{% endfor %}{{ n.v }}", "deep"},
      {"{% set n = namespace(v='x') %}{% for i in range(9999) %}{% set n.v = [n.v].count %}{% endfor %}", "deep"},
      // Lists that hold one list twice, and so on: small to hold, endless to walk.
      {"{% set n = namespace(l=[1]) %}{% for i in range(90) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l == n.l }}",
       "steps"},
      {"{% set n = namespace(l=[1]) %}{% for i in range(90) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}",
       "steps"},
      {"{% set n = namespace(l=[1]) %}{% for i in range(90) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l | tojson }}",
       "steps"},
      {"{% set n = namespace(l=(1,)) %}{% for i in range(90) %}{% set n.l = (n.l, n.l) %}{% endfor %}{{ {n.l: 1} }}",
       "key"},
      // Long strings read again and again.
      {"{% set s = 'a' * 9999999 %}{% for i in range(99999) %}{{ s.find('b') }}{% endfor %}", "steps"},
      {"{% set s = 'a' * 9999999 %}{% for i in range(99999) %}{% if 'b' in s %}{% endif %}{% endfor %}", "steps"},
      {"{% set s = '\u00e9' * 999999 %}{% for i in range(99999) %}{% if s is upper %}{% endif %}{% endfor %}", "steps"},
      {"{% set s = '\u00e9' * 999999 %}{% for i in range(99999) %}{{ s[-1] }}{% endfor %}", "steps"},
      {"{% set l = range(99999) | list %}{% for i in range(99999) %}{% set x = l | sort %}{% endfor %}", "steps"},
      {"{% set l = range(99999) | list %}{% for i in l %}{% set x = l | unique | list %}{% endfor %}",
       "bytes of strings"},
  };
  const Limits limits{.steps = 2'000'000, .string_bytes = 64 << 20};
  for (const auto& [source, message] : kCases) {
    const std::string error = error_of(source, {}, limits);
    EXPECT_NE(error.find(message), std::string::npos) << source << "\n" << error;
  }
}

// Searches are linear even where a naive one is quadratic: 8 * 10^12 comparisons would not end within the test's time.
// Each of the eight passes over the 4 MB costs a step per 32 bytes.
TEST(JinjaBudget, SearchesInLinearTime) {
  const std::string source =
      "{% set s = 'a' * 4000000 %}{% set p = 'a' * 2000000 ~ 'b' %}"
      "{{ p in s }} {{ s.find(p) }} {{ s.rfind(p) }} {{ s.count(p) }} {{ s.replace(p, '') == s }} {{ s.rsplit(p) | "
      "length }}";
  EXPECT_EQ(render(source, {}, {.steps = 2'000'000}).bytes(), "False -1 -1 0 True 1");
  EXPECT_NE(error_of(source, {}, {.steps = 500'000}).find("steps"), std::string::npos);
}

TEST(JinjaBudget, RefusesSyntaxThatNestsTooDeep) {
  const auto repeated = [](std::string_view part, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += part;
    return out;
  };
  EXPECT_NE(error_of("{{ " + repeated("(", 5000)).find("nest"), std::string::npos);
  EXPECT_NE(error_of("{{ " + repeated("[", 150) + repeated("]", 150) + " }}").find("nest"), std::string::npos);
  EXPECT_NE(error_of(repeated("{% if 1 %}", 5000)).find("nest"), std::string::npos);
  EXPECT_NE(error_of("{{ 1" + repeated(" + 1", 5000) + " }}").find("chains"), std::string::npos);
  EXPECT_NE(error_of("{{ x" + repeated(".a", 5000) + " }}").find("chains"), std::string::npos);
  EXPECT_NE(error_of("{{ x" + repeated("|trim", 5000) + " }}").find("chains"), std::string::npos);
  EXPECT_NE(error_of("{{ " + repeated("not ", 5000) + "x }}").find("many"), std::string::npos);
  EXPECT_NE(error_of("{{ " + repeated("-", 5000) + "1 }}").find("many"), std::string::npos);
  EXPECT_NE(error_of(repeated("x", 2 << 20)).find("bytes"), std::string::npos);
}

TEST(JinjaBudget, CountsOutput) {
  const Limits limits{.output_bytes = 1000};
  EXPECT_NE(error_of("{% for i in range(999) %}xx{% endfor %}", {}, limits).find("output"), std::string::npos);
  EXPECT_EQ(render("{% for i in range(500) %}xx{% endfor %}", {}, limits).size(), 1000u);
}

// Values that refer to each other in circles, and chains of scopes: nothing leaks (AddressSanitizer) or recurses.
TEST(JinjaBudget, FreesWhatTemplatesTieInKnots) {
  EXPECT_EQ(render("{% set n = namespace() %}{% set n.n = n %}{% set n.l = [n] %}{{ n.n.n.l | length }}").bytes(), "1");
  EXPECT_EQ(render("{% macro m() %}{{ x }}{% endmacro %}{% set x = m %}{{ m.name }}").bytes(), "m");
  const std::string chain =
      "{% set n = namespace(f=none) %}{% macro m(g) %}{% macro inner() %}{% endmacro %}{% set n.f = inner %}{% "
      "endmacro %}"
      "{% for i in range(50000) %}{{ m(n.f) }}{% endfor %}ok";
  EXPECT_EQ(render(chain).bytes(), "ok");
  EXPECT_EQ(
      render("{% set n = namespace() %}{% for i in [1, 2] %}{% set n.l = loop %}{{ loop.changed(loop) }}{% endfor %}"
             "{{ n.l.index }}")
          .bytes(),
      "TrueFalse2");
  EXPECT_NE(
      error_of("{% set n = namespace() %}{% for i in [1] recursive %}{% set n.l = loop %}{% endfor %}{{ n.l([1]) }}")
          .find("can't be called"),
      std::string::npos);
}

TEST(Jinja, RendersTheSameTwice) {
  const Template compiled = Template::compile("t", "{% set n = namespace(i=1) %}{% set n.i = n.i + 1 %}{{ n.i }}");
  EXPECT_EQ(compiled.render({}, fixture_time()).bytes(), "2");
  EXPECT_EQ(compiled.render({}, fixture_time()).bytes(), "2");
}

TEST(Jinja, HasAnInjectedClock) {
  EXPECT_EQ(render("{{ strftime_now('%Y-%m-%d %H:%M') }}").bytes(), "2025-07-06 09:05");
}

}  // namespace
}  // namespace weir::jinja
