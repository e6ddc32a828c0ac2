// Fixtures that were changed so that they must be refused.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/support/fixtures.h"
#include "tests/support/model_files.h"

namespace weir::test {

// Loading a changed copy of `source` ends with a message that has all of `words`.
inline void expect_refused(const std::string& source, const std::function<void(ModelFiles&)>& change,
                           const std::vector<std::string>& words) {
  ModelFiles files = ModelFiles::read(fixture(source));
  change(files);
  TemporaryFolder folder;
  files.write(folder.path());
  try {
    Model::load(folder.path());
    ADD_FAILURE() << "accepted; expected a message with '" << words.front() << "'";
  } catch (const Error& e) {
    for (const std::string& word : words) EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
  }
}

}  // namespace weir::test
