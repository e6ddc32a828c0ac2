#include <sstream>

#include "cli/load_prompts.h"

namespace weir::cli {

// Frequent ones: with the space before it each is one token of most vocabularies.
const std::vector<std::string>& common_words() {
  static constexpr const char* kWords =
      "time year people way day man thing woman life child world school state family student group country problem "
      "hand part place case week company system program question work government number night point home water room "
      "mother area money story fact month lot right study book eye job word business issue side kind head house "
      "service friend father power hour game line end member law car city community name president team minute idea "
      "body information back parent face others level office door health person art war history party result change "
      "morning reason research girl guy moment air teacher force education foot boy age policy music market sense "
      "nation plan college interest death experience effect use class control care field development role effort rate "
      "heart drug show leader light voice wife whole police mind price report decision son view relationship town road "
      "arm difference value building action season society tax director position player record paper space ground form "
      "event official matter center couple site project activity star table need court oil situation cost industry "
      "figure street image phone data picture practice piece land product doctor wall patient worker news test movie "
      "north love support technology step baby computer type attention film tree source hair look window culture "
      "chance "
      "brother energy period course summer plant opportunity term letter condition choice rule daughter south husband "
      "floor campaign material population call economy hospital church risk fire future bank west sport board subject "
      "officer rest behavior performance top goal second bed order author blood agency nature color store sound";
  static const std::vector<std::string> words = [] {
    std::istringstream in(kWords);
    std::vector<std::string> out;
    for (std::string word; in >> word;) out.push_back(word);
    return out;
  }();
  return words;
}

}  // namespace weir::cli
