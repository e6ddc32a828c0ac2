// Answers in Kimi K3's markup from the golden file, by the case that a prompt names.
#pragma once

#include "engine/model_text.h"
#include "formats/json.h"
#include "server/openai.h"
#include "tests/support/replay_engine.h"

namespace weir::test {

class K3Answers {
 public:
  K3Answers() : text_(ModelText::open(WEIR_FIXTURES "/kimi_k3/text")) {
    cases_ = read_json_file(WEIR_FIXTURES "/kimi_k3/text/chat_k3.json").at("parse").as_array();
    served_ = {.text = &text_,
               .name = "k3",
               .fingerprint = "weir-test",
               .vocab = text_.tokenizer().vocab_size(),
               .context = 4096,
               .tokens = 4096};
  }
  const openai::Served& served() const { return served_; }
  const boost::json::array& cases() const { return cases_; }

  // A body that asks for case `index`.
  boost::json::object body(size_t index, boost::json::object more = {}) const {
    more["messages"] = {{{"role", "user"}, {"content", concat("case ", index, ".")}}};
    more["chat_template_kwargs"] = {{"thinking", cases_[index].at("start") == "think"}};
    return more;
  }
  // For ReplayEngine: the case, or for another prompt its own ids again.
  ReplayAnswer operator()(const Request& request) const {
    const std::string prompt = text_.tokenizer().decode(request.prompt, false);
    const size_t at = prompt.rfind("case ");
    if (at == std::string::npos) return {request.prompt, {}};
    ReplayAnswer out;
    for (const boost::json::value& id : cases_.at(std::stoul(prompt.substr(at + 5))).at("ids").as_array()) {
      out.ids.push_back(id.to_number<int32_t>());
    }
    return out;
  }

 private:
  ModelText text_;
  boost::json::array cases_;
  openai::Served served_;
};

}  // namespace weir::test
