// Any bytes become well-formed XML.
#include "topo/xml_text.hpp"

#include <gtest/gtest.h>

namespace ddp::tools {
namespace {

TEST(XmlText, EscapesWhatHasAMeaning) {
  EXPECT_EQ(escape_xml("<a b='c' & \"d\">"), "&lt;a b=&apos;c&apos; &amp; &quot;d&quot;&gt;");
}

TEST(XmlText, KeepsUtf8) {
  EXPECT_EQ(escape_xml("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"), "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
}

TEST(XmlText, ReplacesWhatXmlCannotHold) {
  EXPECT_EQ(escape_xml(std::string_view("a\0b\x1b\x7f", 5)), "a?b?\x7f");
  EXPECT_EQ(escape_xml("\xff"), "?");
  EXPECT_EQ(escape_xml("\xc3"), "?");                 // cut
  EXPECT_EQ(escape_xml("\xe2\x82"), "??");            // cut
  EXPECT_EQ(escape_xml("\xc3(x"), "?(x");             // no continuation
  EXPECT_EQ(escape_xml("\xc0\x80"), "??");            // longer than needed
  EXPECT_EQ(escape_xml("\xed\xa0\x80"), "???");       // a surrogate
  EXPECT_EQ(escape_xml("\xef\xbf\xbf"), "???");       // U+FFFF
  EXPECT_EQ(escape_xml("\xf4\x90\x80\x80"), "????");  // beyond Unicode
  EXPECT_EQ(escape_xml("\t\n"), "\t\n");
}

}  // namespace
}  // namespace ddp::tools
