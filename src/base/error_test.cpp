#include "base/error.h"

#include <gtest/gtest.h>

namespace weir {
namespace {

TEST(Error, IsOneLineThatCantSteerATerminal) {
  EXPECT_STREQ(Error("a\nb\r\x1b[31m\x7f").what(), "a\\x0ab\\x0d\\x1b[31m\\x7f");
  EXPECT_STREQ(Error("Gr\xc3\xb6\xc3\x9f"
                     "e \xe4\xbd\xa0 \xf0\x9f\x98\x80")
                   .what(),
               "Gr\xc3\xb6\xc3\x9f"
               "e \xe4\xbd\xa0 \xf0\x9f\x98\x80");
  EXPECT_STREQ(Error("\xc2\x9b"
                     "31m")
                   .what(),
               "\\xc2\\x9b31m");  // a control sequence in one character
  EXPECT_STREQ(Error(std::string_view("a\0b", 3)).what(), "a\\x00b");
}

TEST(OneLine, EscapesWhatIsNotUtf8) {
  EXPECT_EQ(one_line("\xff \xc3 \xe4\xbd \xc0\x80 \xed\xa0\x80 \xf4\x90\x80\x80"),
            "\\xff \\xc3 \\xe4\\xbd \\xc0\\x80 \\xed\\xa0\\x80 \\xf4\\x90\\x80\\x80");
  EXPECT_EQ(one_line(one_line("\n")), one_line("\n"));
}

TEST(Printable, QuotesAndCuts) {
  EXPECT_EQ(printable("it's \\n"), "'it\\'s \\\\n'");
  EXPECT_EQ(printable("abc", 2), "'ab'...");
  EXPECT_EQ(printable("\xe4\xbd\xa0", 2), "'\\xe4\\xbd'...");
}

}  // namespace
}  // namespace weir
