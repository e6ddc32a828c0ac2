// Tool calls in the answers of models behind chat templates, taken out of the text as it arrives.
#pragma once

#include <boost/json/array.hpp>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/call_syntax.h"
#include "text/chat.h"

namespace weir {

// How arguments that come as plain texts become JSON: by the tools' declared parameters.
class ToolParameters {
 public:
  explicit ToolParameters(const boost::json::array& tools);

  bool declared(std::string_view tool) const { return tools_.contains(tool); }
  bool is_string(std::string_view tool, std::string_view key) const;  // also when nothing is known about it
  // Of one that is no string: `text` as it is when it is JSON (True, False and None count), else as a string.
  static std::string json_of(std::string_view text);

 private:
  std::map<std::string, std::map<std::string, bool, std::less<>>, std::less<>> tools_;  // tool, key: is it a string?
};

// Text that looks like a call and turns out to be none is content. White space around calls is nobody's. A call starts
// in the stream when its name is known and its arguments begin; what is wrong with them is passed on for the caller to
// see. A call that is cut before the end of its arguments has no kToolCallEnd and is not in the message. The result
// does not depend on how the text was cut into pieces.
class CallParser {
 public:
  // `syntax` outlives the parser. Calls get the ids ID_PREFIX0, ID_PREFIX1 ...
  CallParser(const CallSyntax& syntax, const boost::json::array& tools, std::string id_prefix);

  // `message` grows by what the events say.
  void push(std::string_view text, ParsedMessage& message, std::vector<ChatEvent>& events);
  // The text is over; `complete`: not cut.
  void finish(bool complete, ParsedMessage& message, std::vector<ChatEvent>& events);

 private:
  enum class State {
    kText,
    kSection,    // between calls
    kHead,       // before the arguments
    kBuffered,   // a call whose parts come in another order: read when it is whole
    kObject,     // arguments of kObject
    kRaw,        // of kRaw
    kKey,        // of kParameters: before a key, or the end
    kValue,      // after it
    kTail,       // between the arguments and the end of the call
    kLookalike,  // the answer is an object: read at the end
  };
  enum class Verdict { kMore, kYes, kNo };

  bool step();  // false: needs more text
  bool text();
  bool section();
  bool head();
  Verdict object_head();
  Verdict named_head();
  Verdict raw_head();
  bool buffered();
  bool object_arguments();
  bool raw_arguments();
  bool key();
  bool value();
  bool tail();
  void give_back();  // what was held as the beginning of a call is content
  bool whole_call(std::string_view json, bool declared_only);
  void start_call(std::string name);
  void arguments(std::string_view json);
  void end_call();
  void content(std::string_view text);

  const CallSyntax& syntax_;
  ToolParameters parameters_;
  std::string id_prefix_;
  State state_ = State::kText;
  std::string held_;      // not yet understood
  std::string pending_;   // passed, and content if no call follows
  bool at_start_ = true;  // nothing but white space so far
  bool after_call_ = false;
  int calls_ = 0;
  ParsedToolCall call_;
  std::string key_;
  bool value_begun_ = false, string_value_ = false;
  int depth_ = 0;  // of kObject
  bool in_string_ = false, escaped_ = false;
  ParsedMessage* message_ = nullptr;  // of the call in progress
  std::vector<ChatEvent>* events_ = nullptr;
};

}  // namespace weir
